"""A device tensor over the bytes of a CPU tensor, and back, without a copy.

A device tensor is genuine: a plain `torch.Tensor` whose storage says `sim:0`. Torch offers Python
no allocator for such a device, but it lets one be put together: a storage over given bytes, an
empty tensor of the device, and the CPU's `set_` kernel (it only writes metadata) to join the two.
"""

import ctypes
from typing import Any

import torch

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.memory import Block

__all__ = ["CPU", "CPU_KEYS", "cpu_storage", "device_storage", "is_on_device", "reattach", "to_cpu"]

CPU = torch.device("cpu")
CPU_KEYS = private.DispatchKeySet(private.DispatchKey.CPU)
SPARSE_CPU_KEYS = private.DispatchKeySet(private.DispatchKey.SparseCPU)
_device_of = private.tensor_device
# Without the Python frame of `OpOverload.redispatch`: these run for every result of every kernel.
_copy_sparse = private.redispatch(torch.ops.aten.copy_sparse_to_sparse_.default)
_copy_template = private.redispatch(torch.ops.aten.alias.default)
_set = private.redispatch(torch.ops.aten.set_.source_Storage_storage_offset)

_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4)

_templates: dict[tuple[torch.dtype, int], torch.Tensor] = {}


def is_on_device(x: object) -> bool:
    """Whether `x` is a tensor on the simulated device."""
    return isinstance(x, torch.Tensor) and _device_of(x).type == state.backend


# ------------------------------------------------------------------ storages


def device_storage(
    storage: torch.UntypedStorage, index: int, base: torch.Tensor | None = None
) -> torch.UntypedStorage:
    """Return a storage on device `index` over the bytes of a CPU storage, counted as memory."""
    nbytes = storage.nbytes()
    made = private.storage_over(storage.data_ptr(), state.device(index), nbytes)
    if base is None:
        base = torch.empty(0, dtype=torch.uint8, device=CPU).set_(storage)
    # Keeps the bytes alive. Torch keeps the Python object of a storage as long as the C++ one.
    made._block = Block(base, index, nbytes)
    if state.allocated is not None:
        state.allocated(made, index)
    return made  # type: ignore[no-any-return]


def cpu_storage(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return the CPU storage under a device storage."""
    block = getattr(storage, "_block", None)
    if block is not None:
        return block.base.untyped_storage()  # type: ignore[no-any-return]
    # C++ made a second storage over the same bytes (DLPack does); the first one keeps them alive.
    return private.storage_over(storage.data_ptr(), CPU, storage.nbytes())  # type: ignore[no-any-return]


# ------------------------------------------------------------------ tensors


def _template(dtype: torch.dtype, index: int) -> torch.Tensor:
    """Make an empty tensor of the device, whose metadata `to_device` overwrites."""
    if not state.active().float64 and dtype in (torch.float64, torch.complex128):
        name = state.shown(state.device(index)).type
        raise TypeError(
            f"Cannot convert a {name.upper()} Tensor to float64 dtype as the {name.upper()} "
            f"framework doesn't support float64. Please use float32 instead."
        )
    if dtype in _QUANTIZED:
        raise NotImplementedError("the simulated accelerator has no quantized tensors")
    template = private.create_empty_tensor([0], dtype)
    if index:
        # The only way to another index: through DLPack, with the index in the capsule overwritten.
        # DLManagedTensor starts with {void* data; int32 device_type; int32 device_id}; 12 is
        # kDLExtDev.
        capsule = private.to_dlpack(template)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, b"dltensor")
        if ctypes.c_int32.from_address(address + 8).value != 12:
            raise NotImplementedError("DLPack of this torch gives PrivateUse1 another device type")
        ctypes.c_int32.from_address(address + 12).value = index
        template = private.from_dlpack(capsule)
    return template  # type: ignore[no-any-return]


def template(dtype: torch.dtype, index: int) -> torch.Tensor:
    """Return the empty tensor of a type and device; one for all, never given to the user."""
    found = _templates.get((dtype, index))
    if found is None:
        found = _templates[dtype, index] = _template(dtype, index)
    return found


def any_made() -> bool:
    """Whether a tensor of the device was made since the templates were last dropped."""
    return bool(_templates)


def forget_templates() -> None:
    """Make templates anew on next use: what is allowed (float64) is checked where they are made."""
    _templates.clear()


def to_device(x: torch.Tensor, index: int) -> torch.Tensor:
    """Return the device tensor over the bytes of a dense CPU tensor."""
    if x.layout is not torch.strided:
        return sparse_to_device(x, index)
    made = _copy_template(CPU_KEYS, template(x.dtype, index))
    plain = not (x.requires_grad or x.is_conj() or x.is_neg())
    storage = device_storage(x.untyped_storage(), index, x if plain else None)
    _set(CPU_KEYS, made, storage, x.storage_offset(), x.size(), x.stride())
    return made  # type: ignore[no-any-return]


def to_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor over the bytes of a device tensor."""
    if x.layout is not torch.strided:
        return sparse_to_cpu(x)
    dtype = x.dtype
    storage = x.untyped_storage()
    block = getattr(storage, "_block", None)
    if block is not None and block.base.dtype is dtype:
        made = block.base.as_strided(x.size(), x.stride(), x.storage_offset())
    else:
        # With a device: a mode (`with torch.device(...)`) may be active where a late copy lands.
        made = torch.empty(0, dtype=dtype, device=CPU)
        made.set_(cpu_storage(storage), x.storage_offset(), x.size(), x.stride())
    # `x.conj()` and `-x.imag` are marked by a bit and computed when read.
    if dtype.is_complex and x.is_conj():
        private.set_conj(made, True)
    if x.is_neg():
        private.set_neg(made, True)
    return made  # type: ignore[no-any-return]


def reattach(x: torch.Tensor, cpu: torch.Tensor) -> None:
    """Give a device tensor the storage and shape of a CPU tensor, as after a resize."""
    storage = device_storage(cpu.untyped_storage(), _device_of(x).index)
    _set(CPU_KEYS, x, storage, cpu.storage_offset(), cpu.size(), cpu.stride())


# ------------------------------------------------------------------ sparse COO


def sparse_to_device(x: torch.Tensor, index: int) -> torch.Tensor:
    """Return a sparse COO tensor whose parts are device tensors over the bytes of the CPU's."""
    _only_coo(x)
    return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(  # type: ignore[no-any-return]
        x.sparse_dim(),
        x.dense_dim(),
        list(x.shape),
        to_device(x._indices(), index),
        to_device(x._values(), index),
        dtype=x.dtype,
        layout=torch.sparse_coo,
        device=state.device(index),
        is_coalesced=x.is_coalesced(),
    )


def sparse_to_cpu(x: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor over the bytes of a sparse COO device tensor."""
    _only_coo(x)
    return torch.sparse_coo_tensor(
        to_cpu(x._indices()),
        to_cpu(x._values()),
        x.shape,
        is_coalesced=x.is_coalesced(),
        check_invariants=False,
    )


def sparse_reattach(x: torch.Tensor, cpu: torch.Tensor) -> None:
    """Give a sparse device tensor copies of the parts of a CPU tensor.

    The CPU's kernel does it: it copies the two dense parts and writes metadata.
    """
    _copy_sparse(SPARSE_CPU_KEYS, x, sparse_to_device(cpu, device_index(x)))


def _only_coo(x: torch.Tensor) -> None:
    if x.layout is torch.sparse_coo:
        return
    raise NotImplementedError(
        f"the simulated accelerator has no {x.layout} tensors, only dense ones and sparse_coo; "
        f"test this code on the CPU or on a real accelerator"
    )


def device_index(x: torch.Tensor) -> int:
    """Return the index of the simulated device that a tensor is on."""
    index: Any = _device_of(x).index
    return int(index)
