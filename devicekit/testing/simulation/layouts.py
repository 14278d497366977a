"""Tensors of the device that are not dense: sparse COO works, the rest says that it does not."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from devicekit.testing.simulation import operators, private, state, tensors
from devicekit.testing.simulation.engine import is_view, kernel_of, run_unknown

__all__ = ["register"]

# What a sparse COO tensor is made of; C++ reads it with the CPU's kernels also from ours.
_PARTS = [
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_coo_tensor_with_dims",
    "sparse_dim",
    "dense_dim",
    "_nnz",
    "is_coalesced",
    "_coalesced_",
    "_indices",
    "_values",
    "indices",
    "values",
    "empty.memory_format",
]

_UNSUPPORTED = {
    "SparseCsrPrivateUse1": "compressed sparse (CSR, CSC, BSR, BSC)",
    "NestedTensorPrivateUse1": "strided nested",
    "QuantizedPrivateUse1": "quantized",
}


def register(library: Callable[[str], Any]) -> None:
    """Register the kernels; `library` makes one for a namespace."""
    library("_").fallback(run_unknown, "SparsePrivateUse1")
    aten = library("aten")

    def on_cpu(op: Any) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device") is not None and state.resolve(kwargs["device"]):
                # C++ takes the index from the guard, which from Python knows only 0.
                raise NotImplementedError(
                    "the simulated accelerator has no sparse tensors on other devices than 0"
                )
            return op.redispatch(tensors.SPARSE_CPU_KEYS, *args, **kwargs)

        return kernel

    for name in _PARTS:
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        aten.impl(name, on_cpu(op), "SparsePrivateUse1")
    aten.impl("_to_dense", _to_dense, "SparsePrivateUse1")
    aten.impl("_copy_from", _copy_from, "SparsePrivateUse1")
    for op in _own_on_sparse_cuda():
        aten.impl(op.name().split("::")[1], kernel_of(op), "SparsePrivateUse1")
    for key, kind in _UNSUPPORTED.items():
        library("_").fallback(_refuse(kind), key)
    # Composite, so the fallback does not catch it: what `.to` makes a compressed tensor with.
    op = torch.ops.aten._sparse_compressed_tensor_unsafe.default
    refuse = _refuse(_UNSUPPORTED["SparseCsrPrivateUse1"])
    aten.impl(op._schema.name, functools.partial(refuse, op), "SparseCsrPrivateUse1")


def _own_on_sparse_cuda() -> Iterator[Any]:
    """Yield the operators that CUDA does not decompose for sparse COO tensors."""
    for name, operator in operators.table().items():
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if not operator.on_sparse_cuda or op is None or name in (*_PARTS, "copy_", "_to_dense"):
            continue
        makes = not any(a.is_out for a in op._schema.arguments) and not is_view(op)
        if makes and private.has_kernel_for(op.name(), "SparseCPU"):
            yield op


def _to_dense(
    x: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    return tensors.to_device(tensors.sparse_to_cpu(x).to_dense(dtype), tensors.device_index(x))


def _copy_from(
    source: torch.Tensor, destination: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    low = tensors.to_cpu(source) if tensors.is_on_device(source) else source
    if not tensors.is_on_device(destination):
        return destination.copy_(low)
    tensors.sparse_reattach(destination, low)
    return destination


def _refuse(kind: str) -> Callable[..., Any]:
    def refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"the simulated accelerator has no {kind} tensors, and {op.name()} takes or "
            f"makes one; it has dense ones, sparse_coo and jagged nested ones. Test this code on "
            f"the CPU or on a real accelerator"
        )

    return refuse
