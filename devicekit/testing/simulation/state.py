"""What is simulated now, and the points where other layers hook in."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Config", "active", "current", "device", "resolve"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True


@dataclass(frozen=True, slots=True)
class Config:
    """The options of one simulation, as `simulate` takes them."""

    name: str
    count: int = 2
    float64: bool = True
    memory: int | None = None
    async_copies: bool = False


class _Current(threading.local):
    """The current device of each thread, as on CUDA."""

    index = 0


current = _Current()

backend = ""
"""The name that the PrivateUse1 key carries in this process, "" before the first simulation."""

config: Config | None = None
"""The innermost active simulation, None outside any."""

forked: Config | None = None
"""What was active where this process was forked after using the device, instead of `config`."""


# ------------------------------------------------------------------ extension points
# A layer above sets these while it is active and puts the old value back when it stops.


def _shown(device: torch.device) -> torch.device:
    return device


shown: Callable[[torch.device], torch.device] = _shown
"""How a device is shown to the user in messages: `sim:0`, or `cuda:0` under a disguise."""

before_kernel: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None] | None = None
"""Called with the tensors that a kernel is about to read and those it is about to write."""

copy: Callable[[torch.Tensor, torch.Tensor, bool], bool] | None = None
"""Called with destination, source and `non_blocking` before a copy; True: it took the copy over."""

allocated: Callable[[torch.UntypedStorage, int], None] | None = None
"""Called with each new storage of a device and the device's index."""

host_read: Callable[[int], None] | None = None
"""Called with the index of a device before the host reads a value from it, as `.item()` does."""

record_stream: Callable[[torch.Tensor, Any], None] | None = None
"""Called for `tensor.record_stream(stream)`."""


# ------------------------------------------------------------------ devices


def active() -> Config:
    """Return the active simulation.

    Raises:
        RuntimeError: This process was forked from one that had used the device; in CUDA's words.
        RuntimeError: There is none: the tensor or the call outlived its `with simulate()` block.
    """
    if config is None and forked is not None:
        # torch/cuda/__init__.py
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
            "multiprocessing, you must use the 'spawn' start method"
        )
    if config is None:
        raise RuntimeError(
            f"the simulated accelerator {backend!r} is not active: this is outside its "
            f"`with devicekit.testing.simulate()` block (or after `.stop()`)"
        )
    return config


_devices: dict[int, torch.device] = {}


def device(index: int) -> torch.device:
    """Return the device as torch's C++ knows it (`shown` says how the user sees it)."""
    found = _devices.get(index)
    if found is None:
        found = _devices[index] = torch.device(backend, index)
    return found


def resolve(spec: Any) -> int:
    """Return the index that a device, a string, an index or None (the current one) means.

    Raises:
        RuntimeError: There is no such device, in CUDA's words.
    """
    if spec is None:
        return current.index
    if isinstance(spec, int):
        index = current.index if spec == -1 else spec
    else:
        spec = torch.device(spec)
        index = current.index if spec.index is None else spec.index
    count = active().count
    if not 0 <= index < count:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal\n"
            f"  the simulation has {count} device(s), and index {index} was asked for"
        )
    return index
