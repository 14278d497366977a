"""What surrounds one test on one device: its simulation, the state put back, the checks."""

import contextlib
import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest

from devicekit.testing.plugin.markers import Requirement
from devicekit.testing.plugin.selection import SIMULATED

_stack_key = pytest.StashKey[ExitStack]()


def enter(item: pytest.Item, spec: str) -> None:
    """Starts the simulation that `spec` needs, and remembers the state that `leave` puts back."""
    stack = item.stash.setdefault(_stack_key, ExitStack())
    stack.enter_context(_torch_state())
    if spec.partition(":")[0] == SIMULATED:
        from devicekit.testing.simulation import simulate

        stack.enter_context(simulate(SIMULATED, allow_real=True))


def leave(item: pytest.Item) -> None:
    """Ends what `enter` began, also when the test failed half-way."""
    stack = item.stash.get(_stack_key, None)
    if stack is not None:
        del item.stash[_stack_key]
        stack.close()


def missing(needed: Requirement, spec: str | None) -> str | None:
    """Says what a test's requirement lacks on its device, or on this machine if it takes none."""
    if spec is None:
        type_, index = needed.type, 0
        if needed.type in ("gpu", "accelerator"):
            from devicekit.device import Device

            type_ = Device("auto").type
    else:
        type_, _, number = spec.partition(":")
        index = int(number or 0)
    return needed.missing_on(type_, index)


@contextlib.contextmanager
def checked(item: pytest.Item, spec: str) -> Iterator[None]:
    """Makes the checks of the markers `devicekit_check` around the test's body."""
    wanted = {
        name
        for mark in item.iter_markers("devicekit_check")
        for name, on in mark.kwargs.items()
        if on
    }
    with ExitStack() as stack:
        for name in sorted(wanted):
            stack.enter_context(_CHECKS[name](item, spec))
        yield


@contextlib.contextmanager
def _torch_state() -> Generator[None]:
    """Puts back the default device and the states of torch's random generators."""
    import torch

    default = torch.get_default_device()
    state = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if torch.get_default_device() != default:
            torch.set_default_device(default)
        torch.set_rng_state(state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def _no_memory_left(item: pytest.Item, spec: str) -> Generator[None]:
    import torch

    type_ = spec.partition(":")[0]
    allocated: Callable[[], int] | None = None
    if type_ != "cpu":
        allocated = getattr(torch.get_device_module(type_), "memory_allocated", None)
    if allocated is None:
        _not_checked(item, "memory", f"{type_} has no allocator statistics")
        yield
        return
    gc.collect()
    before = allocated()
    yield
    gc.collect()
    left = allocated() - before
    if left > 0:
        pytest.fail(f"{left} bytes are still allocated on {spec} after the test", pytrace=False)


@contextlib.contextmanager
def _no_hidden_synchronisation(item: pytest.Item, spec: str) -> Generator[None]:
    import torch

    if spec.partition(":")[0] != "cuda" or not torch.cuda.is_available():
        _not_checked(item, "sync", f"{spec} cannot tell when it synchronises")
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def _nothing_left_elsewhere(item: pytest.Item, spec: str) -> Generator[None]:
    from devicekit.device import Device

    wanted = Device(spec).torch
    gc.collect()
    before = {id(tensor) for tensor in _tensors()}
    yield
    gc.collect()
    left = [tensor for tensor in _tensors() if id(tensor) not in before and tensor.device != wanted]
    if left:
        found = ", ".join(sorted({f"{tuple(t.shape)} on {t.device}" for t in left}))
        pytest.fail(
            f"{len(left)} tensors were left on another device than {wanted}: {found}", pytrace=False
        )


def _tensors() -> list["torch.Tensor"]:  # type: ignore[name-defined]  # noqa: F821
    import torch

    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def _not_checked(item: pytest.Item, check: str, reason: str) -> None:
    item.add_report_section("call", "devicekit", f"not checked: {check}: {reason}")


_CHECKS = {
    "leftovers": _nothing_left_elsewhere,
    "memory": _no_memory_left,
    "sync": _no_hidden_synchronisation,
}
