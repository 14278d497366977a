"""Live bytes per simulated device, the peak, and the limit that `memory=` sets."""

import os
import threading
from collections import defaultdict

import torch

from devicekit.testing.simulation import state

__all__ = ["TOTAL", "Block", "allocated", "free_and_total", "peak", "reserve", "reset_peak"]

TOTAL = 16 << 30
"""The size of a simulated device's memory in bytes where no limit is set."""

# Re-entrant: the collector may run `Block.__del__` while the same thread holds it.
_lock = threading.RLock()
_alive: defaultdict[int, int] = defaultdict(int)
_peak: defaultdict[int, int] = defaultdict(int)


class Block:
    """The CPU bytes under a device storage, and their count while they live.

    It hangs on the device storage, so it dies with the last tensor that uses it.

    Attributes:
        base: A dense CPU tensor over the bytes, of which the kernels' arguments are views.
        index: The device whose memory it counts as.
        nbytes: How many bytes it counts.
    """

    __slots__ = ("base", "index", "nbytes")

    def __init__(self, base: torch.Tensor, index: int, nbytes: int) -> None:
        self.base = base
        self.index = index
        self.nbytes = 0  # what `__del__` gives back if `reserve` raises
        if state.config is not None and state.config.memory is not None:
            reserve(index, nbytes)
        with _lock:
            alive = _alive[index] = _alive[index] + nbytes
            if alive > _peak[index]:
                _peak[index] = alive
        self.nbytes = nbytes

    # A finaliser through `weakref` costs 2 us for each tensor, this costs 0.2.
    def __del__(self) -> None:
        with _lock:
            _alive[self.index] -= self.nbytes


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def reserve(index: int, nbytes: int) -> None:
    """Check that so many more bytes fit into the device.

    Raises:
        torch.OutOfMemoryError: They do not, in CUDA's words.
    """
    config = state.config
    if config is None or config.memory is None or _alive[index] + nbytes <= config.memory:
        return
    free = max(0, config.memory - _alive[index])
    name = state.shown(state.device(index)).type
    raise torch.OutOfMemoryError(
        f"{'CUDA' if name == 'cuda' else name} out of memory. Tried to allocate {_size(nbytes)}. "
        f"GPU {index} has a total capacity of {_size(config.memory)} of which {_size(free)} is free. "
        f"Of the allocated memory {_size(_alive[index])} is allocated by PyTorch, "
        f"and 0 bytes is reserved by PyTorch but unallocated."
    )


def _size(nbytes: int) -> str:
    """Format a size as CUDA's allocator does."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    for unit, factor in (("KiB", 1 << 10), ("MiB", 1 << 20)):
        if nbytes <= 1024 * factor:
            return f"{nbytes / factor:.2f} {unit}"
    return f"{nbytes / (1 << 30):.2f} GiB"


def allocated(index: int) -> int:
    """Return the bytes of all living storages of a device."""
    return _alive[index]


def peak(index: int) -> int:
    """Return the most bytes that were alive at once since the last `reset_peak`."""
    return max(_peak[index], _alive[index])


def reset_peak(index: int) -> None:
    """Let the peak start again from the bytes that are alive now."""
    _peak[index] = _alive[index]


def free_and_total(index: int) -> tuple[int, int]:
    """Return the free and the total bytes of a device, like `torch.cuda.mem_get_info`."""
    limit = state.config.memory if state.config is not None else None
    total = TOTAL if limit is None else limit
    return max(0, total - _alive[index]), total
