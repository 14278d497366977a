"""What surrounds one test on one device: its simulation, its turn, and the state put back."""

import contextlib
import sys
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from devicekit.testing.plugin.markers import Requirement
from devicekit.testing.plugin.selection import SIMULATED, worker_index

if TYPE_CHECKING:
    from devicekit.device import Device

_stack_key = pytest.StashKey[ExitStack]()
_current: str | None = None  # the spec of the device test that runs now


def enter(item: pytest.Item, spec: str) -> None:
    """Starts the simulation that `spec` needs, and remembers the state that `leave` puts back."""
    stack = item.stash.setdefault(_stack_key, ExitStack())
    stack.enter_context(_is_current(spec))
    type_ = spec.partition(":")[0]
    if type_ == SIMULATED:
        stack.enter_context(_simulation())
    if type_ not in ("cpu", "meta", SIMULATED):
        from devicekit.testing.plugin import turns

        stack.enter_context(turns.turn(devices_of(spec)))
    stack.enter_context(_current_device(devices_of(spec)[0]))
    stack.enter_context(_torch_state(type_))


def leave(item: pytest.Item) -> None:
    """Ends what `enter` began, also when the test failed half-way."""
    stack = item.stash.get(_stack_key, None)
    if stack is not None:
        del item.stash[_stack_key]
        stack.close()


def locked_files() -> list[str]:
    """The files that this process has locked to take its turn on a device."""
    turns = sys.modules.get("devicekit.testing.plugin.turns")
    return sorted(turns.files) if turns is not None else []


class Resumption:
    """The simulation once more, for the end of a fixture that outlives the test it was made in.

    A fixture of a module that holds simulated tensors is torn down after the last test that uses
    it, which may be in another test's setup or teardown.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def begin(self) -> None:
        """Starts the simulation unless it runs."""
        if not is_simulated():
            self._stack.enter_context(_simulation())

    def end(self) -> None:
        """Ends what `begin` started."""
        self._stack.close()


def is_simulated() -> bool:
    """Whether the test that runs now is for a simulated device."""
    return _current is not None and _current.partition(":")[0] == SIMULATED


def devices_of(spec: str) -> "list[Device]":
    """All devices of the type of `spec`, the one it names or this worker's own first."""
    from devicekit.device import Device
    from devicekit.probe import probe

    type_, _, index = spec.partition(":")
    if type_ in ("cpu", "meta"):
        return [Device(type_)]
    count = probe(type_).count
    first = int(index) if index else worker_index(count)
    order = [(first + offset) % count for offset in range(count)]
    return [Device(f"{type_}:{ordinal}", fallback=None) for ordinal in order]


def missing(needed: Requirement, spec: str | None) -> str | None:
    """Says what a test's requirement lacks on its device, or on this machine if it takes none."""
    from devicekit.device import Device

    if spec is not None:
        device = devices_of(spec)[0]
        return needed.missing_on(device.type, device.index or 0)
    if needed.type in ("gpu", "accelerator"):
        best = Device("auto")
        return needed.missing_on(best.type, best.index or 0)
    return needed.missing_on(needed.type, 0)


@contextlib.contextmanager
def _is_current(spec: str) -> Generator[None]:
    global _current
    before, _current = _current, spec
    try:
        yield
    finally:
        _current = before


@contextlib.contextmanager
def _simulation() -> Generator[None]:
    from devicekit.testing.simulation import simulate

    with simulate(SIMULATED, allow_real=True):
        yield


@contextlib.contextmanager
def _current_device(device: "Device") -> Generator[None]:
    """Makes it the current device, so that "cuda" without an index means this worker's own."""
    import torch

    guard = None
    if device.is_accelerator:
        guard = getattr(torch.get_device_module(device.type), "device", None)
    if guard is None:  # the CPU; MPS, which has one device
        yield
        return
    with guard(device.index):
        yield


@contextlib.contextmanager
def _torch_state(type_: str) -> Generator[None]:
    """Puts back the default device, torch's random generators, and what devicekit has said once."""
    import torch

    from devicekit.device import forget

    forget()
    default = torch.get_default_device()
    state = torch.get_rng_state()
    generators = []
    for module in _accelerators(type_):
        suffix = "_all" if hasattr(module, "get_rng_state_all") else ""
        states = getattr(module, f"get_rng_state{suffix}")()
        generators.append((getattr(module, f"set_rng_state{suffix}"), states))
    try:
        yield
    finally:
        if torch.get_default_device() != default:
            # "cpu" is what torch answers where nothing was set.
            torch.set_default_device(None if default.type == "cpu" else default)
        torch.set_rng_state(state)
        for put_back, states in generators:
            put_back(states)
        forget()


def _accelerators(type_: str) -> "list[object]":
    """The device modules whose generators a test for this type of device may have moved."""
    import torch

    names = {type_, *(n for n in ("cuda", "xpu") if getattr(torch, n).is_initialized())}
    modules = [torch.get_device_module(name) for name in sorted(names - {"cpu", "meta"})]
    return [module for module in modules if hasattr(module, "get_rng_state")]
