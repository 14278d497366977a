"""Live bytes per simulated device, the peak, and the limit that `memory=` sets."""

import os
import threading
from collections import defaultdict

import torch

from devicekit.testing.simulation import state

__all__ = ["TOTAL", "Block", "allocated", "free_and_total", "peak", "reserve", "reset_peak"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

TOTAL = 16 << 30
"""The size of a simulated device's memory in bytes where no limit is set."""

# Re-entrant: the collector may run `Block.__del__` while the same thread holds it.
_lock = threading.RLock()


class Count:
    """The bytes of one device that are alive, and the most that were."""

    __slots__ = ("alive", "peak")

    def __init__(self) -> None:
        self.alive = self.peak = 0


counts: defaultdict[int, Count] = defaultdict(Count)
"""The count of each device; every simulation brings its own, so none sees what another left."""


class Block:
    """The CPU bytes under a device storage, and their count while they live.

    It hangs on the device storage, so it dies with the last tensor that uses it.

    Attributes:
        base: A dense CPU tensor over the bytes, of which the kernels' arguments are views.
        count: The count that it is part of.
        nbytes: How many bytes it counts.
    """

    __slots__ = ("base", "count", "nbytes")

    def __init__(self, base: torch.Tensor, index: int, nbytes: int) -> None:
        self.base = base
        self.count = count = counts[index]
        self.nbytes = 0  # what `__del__` gives back if `reserve` raises
        if state.config is not None and state.config.memory is not None:
            reserve(index, nbytes)
        with _lock:
            count.alive += nbytes
            if count.alive > count.peak:
                count.peak = count.alive
        self.nbytes = nbytes

    # A finaliser through `weakref` costs 2 us for each tensor, this costs 0.2.
    def __del__(self) -> None:
        with _lock:
            self.count.alive -= self.nbytes


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def reserve(index: int, nbytes: int) -> None:
    """Check that so many more bytes fit into the device.

    Raises:
        torch.OutOfMemoryError: They do not, in CUDA's words.
    """
    config, alive = state.config, counts[index].alive
    if config is None or config.memory is None or alive + nbytes <= config.memory:
        return
    name = state.shown(state.device(index)).type
    raise torch.OutOfMemoryError(
        f"{'CUDA' if name == 'cuda' else name} out of memory. Tried to allocate {_size(nbytes)}. "
        f"GPU {index} has a total capacity of {_size(config.memory)} of which "
        f"{_size(config.memory - alive)} is free. Of the allocated memory {_size(alive)} is "
        f"allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )


def _size(nbytes: int) -> str:
    """Format a size as CUDA's allocator does, whose message this one copies."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if nbytes <= 1024 * factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes / (1 << 30):.2f} GiB"


def allocated(index: int) -> int:
    """Return the bytes of all living storages of a device."""
    return counts[index].alive


def peak(index: int) -> int:
    """Return the most bytes that were alive at once since the last `reset_peak`."""
    return counts[index].peak


def reset_peak(index: int) -> None:
    """Let the peak start again from the bytes that are alive now."""
    counts[index].peak = counts[index].alive


def free_and_total(index: int) -> tuple[int, int]:
    """Return the free and the total bytes of a device, like `torch.cuda.mem_get_info`."""
    limit = state.config.memory if state.config is not None else None
    total = TOTAL if limit is None else limit
    return max(0, total - counts[index].alive), total
