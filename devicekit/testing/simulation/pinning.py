"""Pinned host memory: a mark on the storage of a CPU tensor."""

import functools
from collections.abc import Callable
from typing import Any

import torch

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.patching import Patches

__all__ = ["install", "is_pinned", "pin_memory"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

# Those that take `pin_memory=`; the CPU's own would ask C++ for a pinned allocator, and there is
# none.
_FACTORIES = [
    "empty",
    "zeros",
    "ones",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "linspace",
    "eye",
    "tensor",
    "empty_like",
    "zeros_like",
    "ones_like",
    "empty_strided",
]


def install(patches: Patches) -> None:
    """Replace `Tensor.pin_memory`, `Tensor.is_pinned` and the `pin_memory=` of factories."""
    patches.set(torch.Tensor, "is_pinned", is_pinned)
    patches.set(torch.Tensor, "pin_memory", pin_memory)
    private.device_constructors()  # before the names in it are replaced
    for name in _FACTORIES:
        patches.set(torch, name, _pinning(getattr(torch, name)))


def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    """Whether a tensor is in host memory that `pin_memory` made."""
    if private.tensor_device(self).type != "cpu" or self.layout is not torch.strided:
        return False
    try:
        storage = self.untyped_storage()
    except NotImplementedError:  # a wrapper subclass without storage
        return False
    return bool(getattr(storage, "_pinned", False))


def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Return the tensor itself if it is pinned, else a pinned copy.

    Raises:
        RuntimeError: It is not a dense CPU tensor, in CUDA's words.
    """
    if private.tensor_device(self).type != "cpu" or self.layout is not torch.strided:
        # aten/src/ATen/native/Memory.cpp; `type()` is "torch.cuda.FloatTensor" under CUDA's name.
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    state.active()
    if is_pinned(self):
        return self
    pinned = torch.empty_like(self)
    pinned.copy_(self.detach())
    pinned.untyped_storage()._pinned = True  # type: ignore[attr-defined]
    return pinned


@functools.cache
def _pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
        if not kwargs.get("pin_memory"):
            return factory(*args, **kwargs)
        made = factory(*args, **{**kwargs, "pin_memory": False})
        if private.tensor_device(made).type != "cpu":
            raise RuntimeError("Only dense CPU tensors can be pinned")
        made.untyped_storage()._pinned = True  # type: ignore[attr-defined]
        return made

    private.stand_in(wrapper, factory)
    return wrapper
