"""Everything of a tensor or storage that shows its device: `sim:1` is shown as `cuda:1`."""

from typing import Any

import torch

from devicekit.testing.simulation import private, state, tensors
from devicekit.testing.simulation.as_cuda.devices import NAME, inward, is_ours, outward
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]

_EXTENSION = 12
"""`kDLExtDev` in dlpack.h: a device that nobody but its maker knows."""


def install(patches: Patches) -> None:
    """Replace the attributes, and the functions that return a device."""
    for name, value in {
        "device": property(_device_getter()),
        "is_cuda": property(_is_cuda),
        "type": _type(torch.Tensor.type),
        "numpy": _numpy(torch.Tensor.numpy),
        "__dlpack_device__": _dlpack_device(torch.Tensor.__dlpack_device__),
        "__cuda_array_interface__": property(
            _cuda_array_interface(torch.Tensor.__cuda_array_interface__)
        ),
    }.items():
        patches.set(torch.Tensor, name, value)
    patches.set(torch.UntypedStorage, "device", property(_storage_device))
    patches.set(torch, "get_default_device", _shown(torch.get_default_device))
    patches.set(torch, "get_device_module", _device_module(torch.get_device_module))
    patches.set(torch._C, "_get_accelerator", _shown(private.get_accelerator))


def _device_getter() -> Any:
    """Return the getter of `Tensor.device`, which CPU tensors in the same process use as well."""
    read = private.tensor_device
    indices = [None, *range(state.active().count)]
    ours = [state.device(i) if i is not None else torch.device(state.backend) for i in indices]
    shown = {device: outward(device) for device in ours}.get

    def device(self: torch.Tensor) -> torch.device:
        found = read(self)
        return shown(found, found)  # type: ignore[no-any-return]

    return device


def _is_cuda(self: torch.Tensor) -> bool:
    return tensors.is_on_device(self) or bool(private.tensor_is_cuda(self))


def _storage_device(self: torch.UntypedStorage) -> torch.device:
    return outward(private.storage_device(self))  # type: ignore[no-any-return]


def _shown(function: Any) -> Any:
    return lambda *args, **kwargs: outward(function(*args, **kwargs))


def _type(torchs_own: Any) -> Any:
    def type(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kw: Any) -> Any:
        if dtype is None:
            name = torchs_own(self)
            return name.replace(f"torch.{state.backend}.", f"torch.{NAME}.")
        if isinstance(dtype, str) and dtype.startswith(f"torch.{NAME}."):
            dtype = getattr(torch.cuda, dtype.rpartition(".")[2])
        if getattr(dtype, "__module__", "") == "torch.cuda":
            return self.to(device=NAME, dtype=dtype.dtype, non_blocking=non_blocking)
        return torchs_own(self, dtype, non_blocking, **kw)

    return type


def _numpy(torchs_own: Any) -> Any:
    def numpy(self: torch.Tensor, **kwargs: Any) -> Any:
        if not tensors.is_on_device(self):
            return torchs_own(self, **kwargs)
        # torch/csrc/utils/tensor_numpy.cpp
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy "
            f"the tensor to host memory first."
        )

    return numpy


def _dlpack_device(torchs_own: Any) -> Any:
    def __dlpack_device__(self: torch.Tensor) -> tuple[int, int]:
        if not tensors.is_on_device(self):
            return torchs_own(self)  # type: ignore[no-any-return]
        # Not CUDA's number: a library that takes the pointer for a GPU's would crash.
        return _EXTENSION, self.get_device()

    return __dlpack_device__


def _cuda_array_interface(torchs_own: Any) -> Any:
    def __cuda_array_interface__(self: torch.Tensor) -> Any:
        if not tensors.is_on_device(self):
            return torchs_own.__get__(self)
        raise AttributeError(
            "a simulated CUDA tensor has no `__cuda_array_interface__`: its memory is the host's"
        )

    return __cuda_array_interface__


def _device_module(torchs_own: Any) -> Any:
    def get_device_module(device: Any = None) -> Any:
        if device is None or is_ours(device) or torch.device(device).type == state.backend:
            return torch.cuda
        return torchs_own(inward(device))

    return get_device_module
