"""The two names of a device: as the user sees it, and as torch's C++ knows it."""

from typing import Any

import torch

from devicekit.testing.simulation import state

__all__ = ["NAME", "inward", "inward_index", "is_ours", "outward"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

NAME = "cuda"

_outward: dict[torch.device, torch.device] = {}


def outward(device: Any) -> Any:
    """Return a device as the user sees it: `sim:1` is shown as `cuda:1`."""
    if device is None or device.type != state.backend:
        return device
    found = _outward.get(device)
    if found is None:
        index = () if device.index is None else (device.index,)
        found = _outward[device] = torch.device(NAME, *index)
    return found


def is_ours(spec: Any) -> bool:
    """Whether a device or string means CUDA."""
    if isinstance(spec, torch.device):
        return bool(spec.type == NAME)
    return isinstance(spec, str) and spec.partition(":")[0] == NAME


def inward(spec: Any) -> Any:
    """Return the device that torch's C++ knows for "cuda", "cuda:1" or a `torch.device`.

    Everything else is returned as it is. So is "cuda" while no simulation of it is active: what a
    module imported during one outlives it.

    Raises:
        RuntimeError: There is no such device, or this is a forked process; in CUDA's words.
    """
    if not is_ours(spec):
        return spec
    if state.shown is not outward:
        return spec
    return inward_index(torch.device(spec).index)


def inward_index(index: int | None) -> torch.device:
    """Return the device that torch's C++ knows for an index, None for the current device."""
    _initialize()
    return state.device(state.resolve(index))


def _initialize() -> None:
    """Let `torch.cuda` note that it is in use, or refuse in a forked process."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.init()  # type: ignore[no-untyped-call]
