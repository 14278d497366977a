"""What another process sees of the simulation: one that was forked, or one that was spawned.

A process forked after its parent used CUDA cannot use it: torch says so, in words that people
search for. A spawned one starts afresh and can; here it also starts the simulation that its parent
was in.

A tensor of the device that goes through a queue or pipe arrives on the same device, as a copy.
(CUDA shares the memory, so there the receiver's writes are seen by the sender, the sender must
outlive what it sent ("Producer process has been terminated before all shared CUDA tensors
released"), and some systems cannot do it at all (error 801). None of the three is simulated.)
"""

import io
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # it fills ForkingPickler's table, once

from devicekit.testing.simulation import private, state, tensors
from devicekit.testing.simulation.patching import Patches

__all__ = ["in_bad_fork", "install", "poison"]

_poisoned = False


def install(patches: Patches) -> None:
    """Teach `multiprocessing` about the simulation that is starting."""
    # Noted for each simulation by itself: what one test used is no matter of a fork in another.
    patches.set(sys.modules[__name__], "_poisoned", False)
    patches.set(BaseProcess, "__reduce_ex__", _reduce_process)
    table = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind in (torch.Tensor, torch.nn.Parameter):
        patches.set_item(table, kind, _reducer_of_tensors(table[kind]))
    patches.set_item(table, torch.UntypedStorage, _reducer_of_storages(table[torch.UntypedStorage]))


# ------------------------------------------------------------------ fork


def poison() -> None:
    """Note that CUDA's driver has been loaded: a process forked from now on cannot use it."""
    global _poisoned
    _poisoned = True


def used() -> bool:
    """Whether a process forked now could not use the device."""
    return _poisoned or tensors.any_made()


def remember() -> tuple[bool, state.Config | None]:
    """Return what `carry_on` needs to know of the simulation that is put aside for an inner one."""
    return used(), state.forked if in_bad_fork() else None


def carry_on_use(remembered: tuple[bool, state.Config | None]) -> None:
    """Let an inner simulation know whether this process has used the device before."""
    if remembered[0]:
        poison()


def carry_on(remembered: tuple[bool, state.Config | None]) -> None:
    """Take up a simulation again as it was left: used, or useless after a fork."""
    carry_on_use(remembered)
    if remembered[1] is not None:
        state.config, state.forked = None, remembered[1]


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had used the device."""
    return state.config is None and state.forked is not None


def _after_fork() -> None:
    if state.config is None or not used():
        return
    # Every kernel asks `state.active()` when there is no configuration, and that says why.
    state.config, state.forked = None, state.config


os.register_at_fork(after_in_child=_after_fork)


# ------------------------------------------------------------------ spawn


def _reduce_process(self: BaseProcess, protocol: Any) -> Any:
    """Pickle a process object such that the simulation starts before the object's content is made.

    `spawn` and `forkserver` send the object to the new process, with the target and its arguments.
    """
    reduced = object.__reduce_ex__(self, protocol)
    assert isinstance(reduced, tuple)
    make, arguments, *rest = reduced
    return _make_in_simulation, (asdict(state.active()), make, *arguments), *rest


def _make_in_simulation(
    options: dict[str, Any], make: Callable[..., object], *arguments: Any
) -> object:
    from devicekit.testing.simulation.api import simulate

    # It is there already if the program's main module starts one when it is imported.
    if state.config is None or asdict(state.config) != options:
        simulate(**options, allow_real=True)
    return make(*arguments)


# ------------------------------------------------------------------ queues and pipes


def _reducer_of_tensors(torchs_own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduce_tensor(x: torch.Tensor) -> Any:
        if not tensors.is_on_device(x):
            return torchs_own(x)
        state.active()
        if x.requires_grad and not x.is_leaf:
            return torchs_own(x)  # raises, for any device
        torch.utils.hooks.warn_if_has_hooks(x)
        index = tensors.device_index(x)
        # Not through shared memory: that is gone with the copy, before another process opens it.
        file = io.BytesIO()
        torch.save(x.detach().to("cpu", copy=True), file)
        return _rebuild_tensor, (type(x), file.getvalue(), index, x.requires_grad)

    return reduce_tensor


def _rebuild_tensor(
    kind: type[torch.Tensor], file: bytes, index: int, requires_grad: bool
) -> torch.Tensor:
    made: torch.Tensor = torch.load(io.BytesIO(file), weights_only=True)
    made = made.to(state.device(state.resolve(index)))
    if issubclass(kind, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)


def _reducer_of_storages(torchs_own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduce_storage(storage: torch.UntypedStorage) -> Any:
        if private.storage_device(storage).type != state.backend:
            return torchs_own(storage)
        name = state.shown(state.device(0)).type.upper()
        # torch/multiprocessing/reductions.py
        raise RuntimeError(f"Cannot pickle {name} storage; try pickling a {name} tensor instead")

    return reduce_storage
