"""Everything that takes a device: "cuda:1" becomes the device that torch's C++ knows."""

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.as_cuda.devices import NAME, inward, inward_index, is_ours
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

_LIKE = [
    "empty_like",
    "full_like",
    "ones_like",
    "rand_like",
    "randint_like",
    "randn_like",
    "zeros_like",
]
_MORE = ["from_file", "full", "normal", "nested.as_nested_tensor"]
"""What takes a device and is not among torch's own device constructors."""

_METHODS = ["new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"]


def install(patches: Patches) -> None:
    """Replace the functions, also where a module has imported one by name."""
    replaced: dict[int, tuple[Any, Any]] = {}
    for owner, name in _factories():
        before = getattr(owner, name)
        after = _with_device(before)
        patches.set(owner, name, after)
        replaced[id(before)] = replaced[id(inspect.unwrap(before))] = (before, after)
    for name in _METHODS:
        patches.set(torch.Tensor, name, _with_device(getattr(torch.Tensor, name)))
    patches.set(torch.Tensor, "to", _to(torch.Tensor.to))
    patches.set(torch.Tensor, "cuda", _cuda)
    patches.set(private.DeviceContext, "__init__", _init_context)
    _install_autocast(patches)
    _rebind(patches, replaced)


# ------------------------------------------------------------------ factories


def _factories() -> list[tuple[Any, str]]:
    """Return every function that takes `device=`, as its owner and name."""
    known = set(private.device_constructors())
    owners: list[Any] = [torch, torch.fft, torch.nested]
    found = [
        (owner, name)
        for owner in owners
        for name, value in vars(owner).items()
        if callable(value) and _hashable(value) and inspect.unwrap(value) in known
    ]
    for path in (*_LIKE, *_MORE):
        module, _, name = path.rpartition(".")
        owner = getattr(torch, module) if module else torch
        if (owner, name) not in found and hasattr(owner, name):
            found.append((owner, name))
    return found


def _hashable(value: Any) -> bool:
    return type(value).__hash__ is not None


@functools.cache
def _with_device(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = inward(device)
        return function(*args, **kwargs)

    private.stand_in(wrapper, inspect.unwrap(function))
    return wrapper


def _rebind(patches: Patches, replaced: dict[int, tuple[Any, Any]]) -> None:
    """Replace a function also in the modules that hold it: `from torch import zeros`."""
    for module in [*sys.modules.values()]:
        if not isinstance(module, ModuleType) or module.__name__.partition(".")[0] == "torch":
            continue
        for name, value in [*vars(module).items()]:
            found = replaced.get(id(value))
            if found is not None and value in (found[0], inspect.unwrap(found[0])):
                patches.set(module, name, found[1])


# ------------------------------------------------------------------ methods


def _to(torchs_own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(torchs_own)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args:
            first = args[0]
            # An index means the accelerator, but a bool is an argument in the wrong place.
            if type(first) is int:
                args = (inward_index(first), *args[1:])
            elif is_ours(first):
                args = (inward(first), *args[1:])
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = inward_index(device) if type(device) is int else inward(device)
        return torchs_own(self, *args, **kwargs)

    return to


def _cuda(
    self: torch.Tensor,
    device: Any = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format = torch.preserve_format,
) -> torch.Tensor:
    """Return the tensor on a CUDA device, as `Tensor.cuda` does."""
    if device is None or isinstance(device, int):
        where = inward_index(device)
    else:
        asked = torch.device(device)
        if asked.type != NAME:
            raise RuntimeError(f"Invalid device, must be cuda device: {asked}")
        where = inward_index(asked.index)
    return self.to(where, non_blocking=non_blocking, memory_format=memory_format)


def _init_context(self: Any, device: Any) -> None:
    """Make the mode of `with torch.device("cuda")`; no index means the current device."""
    private.init_device_context(self, device)
    if not is_ours(self.device):
        return
    if self.device.index is None:
        self.device = torch.device(state.backend)
    else:
        self.device = inward(self.device)


# ------------------------------------------------------------------ autocast


def _install_autocast(patches: Patches) -> None:
    for name in private.AUTOCAST_FUNCTIONS:
        wrapper = _with_type(getattr(torch._C, name))
        patches.set(torch._C, name, wrapper)
        if hasattr(torch, name):
            patches.set(torch, name, wrapper)
    # Without a device type these mean CUDA.
    patches.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(NAME))
    patches.set(
        torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype(NAME, dtype)
    )


def _with_type(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], str):
            # `is_autocast_enabled()` and `set_autocast_enabled(True)` are about CUDA.
            return function(state.backend, *args, **kwargs)
        kind = state.backend if args[0] == NAME else args[0]
        return function(kind, *args[1:], **kwargs)

    return wrapper
