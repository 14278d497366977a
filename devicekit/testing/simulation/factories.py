"""Kernels that make, copy, resize and re-point tensors of the device."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from devicekit.testing.simulation import memory, private, rules, state, tensors
from devicekit.testing.simulation.tensors import CPU, CPU_KEYS

__all__ = ["KERNELS"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

_alias = torch.ops.aten.alias.default
_set = torch.ops.aten.set_.source_Storage_storage_offset
_device_of = private.tensor_device


# ------------------------------------------------------------------ new tensors


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    index = state.resolve(device)
    dtype = dtype or torch.get_default_dtype()
    # Before the CPU's memory is asked for: it may not have as much as the device pretends to.
    memory.reserve(index, prod(size) * dtype.itemsize)
    form = memory_format or torch.contiguous_format
    return tensors.to_device(torch.empty(size, dtype=dtype, device=CPU, memory_format=form), index)


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    index = state.resolve(device)
    dtype = dtype or torch.get_default_dtype()
    if 0 not in size:
        elements = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        memory.reserve(index, elements * dtype.itemsize)
    return tensors.to_device(torch.empty_strided(size, stride, dtype=dtype, device=CPU), index)


def _zeros(size: Sequence[int], **options: Any) -> torch.Tensor:
    """Make real zeros in place of a tensor without storage that stands for them."""
    return _empty(size, **options).zero_()


# ------------------------------------------------------------------ copies


def _copy_from(
    source: torch.Tensor, destination: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """The one kernel behind `copy_`, `.to`, `.cpu` and `clone` across devices."""
    state.active()
    if state.copy is not None and state.copy(destination, source, non_blocking):
        return destination
    if state.before_kernel is not None:
        state.before_kernel([source], [destination])
    low = tensors.to_cpu(source) if tensors.is_on_device(source) else source
    into = tensors.to_cpu(destination) if tensors.is_on_device(destination) else destination
    into.copy_(low)
    return destination


def _copy_from_and_resize(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    if destination.shape != source.shape:
        destination.resize_(source.shape)
    return _copy_from(source, destination)


def _to_copy(
    x: torch.Tensor,
    *,
    non_blocking: bool = False,
    device: torch.device | None = None,
    **options: Any,
) -> torch.Tensor:
    """Take `.to("cpu", non_blocking=True)` from C++, which would ask for a pinned allocator."""
    to_host = device is not None and device.type == "cpu" and x.layout is torch.strided
    if not to_host or not non_blocking:
        return torch.ops.aten._to_copy.default.redispatch(  # type: ignore[no-any-return]
            CPU_KEYS, x, non_blocking=non_blocking, device=device, **options
        )
    made = torch.empty_like(
        x,
        dtype=options.get("dtype"),
        device=CPU,
        memory_format=options.get("memory_format") or torch.preserve_format,
    )
    made.untyped_storage()._pinned = True  # type: ignore[attr-defined]
    return made.copy_(x, non_blocking=True)


def _item(x: torch.Tensor) -> Any:
    state.active()
    if state.before_kernel is not None:
        state.before_kernel([x], [])
    if state.host_read is not None:
        state.host_read(tensors.device_index(x))
    return tensors.to_cpu(x).item()


# ------------------------------------------------------------------ storage and shape in place


def _resize(
    x: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    state.active()
    wanted = prod(size)
    low = tensors.to_cpu(x)
    need = (x.storage_offset() + wanted) * x.element_size()
    if need <= tensors.cpu_storage(x.untyped_storage()).nbytes():
        low.resize_(size)
        _set.redispatch(
            CPU_KEYS, x, x.untyped_storage(), low.storage_offset(), low.size(), low.stride()
        )
        return x
    grown = torch.empty(size, dtype=x.dtype, device=CPU)
    kept = low.reshape(-1)[:wanted]
    grown.view(-1)[: kept.numel()].copy_(kept)
    tensors.reattach(x, grown)
    return x


def _set_tensor(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if _device_of(source) != _device_of(x):
        rules.check(torch.ops.aten.set_.source_Tensor, (x, source), {})
    return _set.redispatch(  # type: ignore[no-any-return]
        CPU_KEYS,
        x,
        source.untyped_storage(),
        source.storage_offset(),
        source.size(),
        source.stride(),
    )


def _set_storage(x: torch.Tensor, source: torch.UntypedStorage) -> torch.Tensor:
    elements = source.nbytes() // x.element_size()
    return _set.redispatch(CPU_KEYS, x, source, 0, [elements], [1])  # type: ignore[no-any-return]


def _set_storage_at(
    x: torch.Tensor,
    source: torch.UntypedStorage,
    offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    if not stride:
        stride = [prod(max(n, 1) for n in size[i + 1 :]) for i in range(len(size))]
    return _set.redispatch(CPU_KEYS, x, source, offset, size, stride)  # type: ignore[no-any-return]


def _set_nothing(x: torch.Tensor) -> torch.Tensor:
    empty = tensors.template(x.dtype, tensors.device_index(x))
    return _set_tensor(x, _alias.redispatch(CPU_KEYS, empty))


# ------------------------------------------------------------------ small ones


def _record_stream(x: torch.Tensor, stream: Any) -> None:
    """Memory is given back when the last tensor dies, so there is nothing else to record."""
    if state.record_stream is not None:
        state.record_stream(x, stream)


def _is_pinned(x: torch.Tensor, device: torch.device | None = None) -> bool:
    return False


def _sdp_choice(*args: Any, **kwargs: Any) -> int:
    return 0  # the math kernel: the flash and efficient ones are CUDA's own


KERNELS: dict[str, Callable[..., Any]] = {
    "empty.memory_format": _empty,
    "empty_strided": _empty_strided,
    "_efficientzerotensor": _zeros,
    "_to_copy": _to_copy,
    "_copy_from": _copy_from,
    "_copy_from_and_resize": _copy_from_and_resize,
    "_local_scalar_dense": _item,
    "resize_": _resize,
    "set_.source_Tensor": _set_tensor,
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _set_storage_at,
    "set_": _set_nothing,
    "record_stream": _record_stream,
    "is_pinned": _is_pinned,
    "_fused_sdp_choice": _sdp_choice,
}
