"""The checks that the marker `devicekit_check` asks for around a test's body."""

import contextlib
import gc
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from devicekit.testing.plugin.running import devices_of
from devicekit.testing.plugin.selection import SIMULATED

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def checked(item: pytest.Item, spec: str) -> Iterator[None]:
    """Makes the checks of the markers `devicekit_check` of a test."""
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
def _no_memory_left(item: pytest.Item, spec: str) -> Generator[None]:
    import torch

    devices = devices_of(spec)
    allocated: Callable[[int | None], int] | None = None
    if devices[0].is_accelerator:
        module = torch.get_device_module(devices[0].type)
        allocated = getattr(module, "memory_allocated", None)
    if allocated is None:
        _not_checked(item, "memory", f"{spec} has no allocator statistics")
        yield
        return

    def count() -> dict[str, int]:
        gc.collect()
        return {device: allocated(device.index) for device in devices}

    before = count()
    yield
    after = count()
    left = [f"{after[d] - before[d]} bytes on {d}" for d in devices if after[d] > before[d]]
    if left:
        pytest.fail(f"still allocated after the test: {', '.join(left)}", pytrace=False)


@contextlib.contextmanager
def _nothing_left_elsewhere(item: pytest.Item, spec: str) -> Generator[None]:
    wanted = {device.torch for device in devices_of(spec)}
    gc.collect()
    # Weak references tell a new tensor from an old one whose id it took.
    before = {id(tensor): weakref.ref(tensor) for tensor in _tensors()}
    yield
    gc.collect()
    left = [
        tensor
        for tensor in _tensors()
        if tensor.device not in wanted
        and (id(tensor) not in before or before[id(tensor)]() is not tensor)
    ]
    if left:
        found = ", ".join(sorted({f"{tuple(t.shape)} on {t.device}" for t in left}))
        pytest.fail(
            f"{len(left)} tensor(s) on another device than {spec} outlived the test: {found}",
            pytrace=False,
        )


def _tensors() -> "list[torch.Tensor]":
    """All tensors of the program; not those that hold the bytes of simulated ones."""
    import torch

    from devicekit.testing.simulation import memory

    things = gc.get_objects()
    bytes_of_others = {id(thing.base) for thing in things if type(thing) is memory.Block}
    return [
        thing
        for thing in things
        if issubclass(type(thing), torch.Tensor) and id(thing) not in bytes_of_others
    ]


@contextlib.contextmanager
def _no_hidden_synchronisation(item: pytest.Item, spec: str) -> Generator[None]:
    import torch

    type_ = spec.partition(":")[0]
    if type_ == SIMULATED:
        with _simulated_synchronisation_raises():
            yield
    elif type_ == "cuda":
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    else:
        _not_checked(item, "sync", f"{spec} cannot tell when it synchronises")
        yield


@contextlib.contextmanager
def _simulated_synchronisation_raises() -> Generator[None]:
    """Raises where CUDA would wait: a blocking copy, a number, a size that depends on values."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from devicekit.testing.simulation import state

    def waits(what: str) -> None:
        # The words of torch.cuda.set_sync_debug_mode("error").
        raise RuntimeError(f"called a synchronizing operation: {what}")

    def copy(into: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> bool:
        if into.device.type != source.device.type and not non_blocking:
            waits(f"a copy from {source.device} to {into.device} without non_blocking=True")
        return before is not None and before(into, source, non_blocking)

    class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if _depends_on_values(op, args, kwargs) and any(
                x.device.type == SIMULATED for x in args if isinstance(x, torch.Tensor)
            ):
                waits(f"the host needs values for {op.overloadpacket}")
            return op(*args, **kwargs)

    before = state.copy
    state.copy = copy
    try:
        with Waits():  # type: ignore[no-untyped-call]
            yield
    finally:
        state.copy = before


def _depends_on_values(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the host must know values of a tensor to go on: a number, or the size of a result."""
    import torch

    aten, packet = torch.ops.aten, op.overloadpacket
    if packet in (aten.index, aten.index_put, aten.index_put_):
        # A boolean mask selects as many elements as it has ones; one number to write needs no size.
        if packet is not aten.index and args[2].numel() == 1:
            return False
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if packet is aten.repeat_interleave:
        return kwargs.get("output_size") is None
    tags = torch.Tag
    return tags.data_dependent_output in op.tags or tags.dynamic_output_shape in op.tags


def _not_checked(item: pytest.Item, check: str, reason: str) -> None:
    item.add_report_section("call", "devicekit", f"not checked: {check}: {reason}")


_CHECKS = {
    "leftovers": _nothing_left_elsewhere,
    "memory": _no_memory_left,
    "sync": _no_hidden_synchronisation,
}
