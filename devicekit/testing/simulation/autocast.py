"""Autocast for the device: CUDA's lists of operators, which a backend has to bring itself.

Source of the lists: aten/src/ATen/autocast_mode.h (AT_FORALL_LOWER_PRECISION_FP, _FP32, _PROMOTE).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from devicekit.testing.simulation import private, state, tensors

__all__ = ["KEY", "kernels"]

KEY = "AutocastPrivateUse1"

_LOWER = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "scaled_dot_product_attention",
]
_FLOAT32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_bilinear2d",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "prod",
    "prod.dim_int",
    "sum",
    "sum.dim_IntList",
    "norm.Scalar",
]
_WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "cat",
    "stack",
]


def kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield name and kernel of every operator that autocast treats."""
    aten = torch.ops.aten
    for names, dtype_of in ((_LOWER, _lower), (_FLOAT32, _float32), (_WIDEST, _widest)):
        for name in names:
            base, _, overload = name.partition(".")
            op = getattr(getattr(aten, base, None), overload or "default", None)
            if op is not None:
                yield name, _kernel(op, dtype_of)


def _kernel(op: Any, dtype_of: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    without = private.DispatchKeySet(getattr(private.DispatchKey, KEY))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with private.ExcludeDispatchKeyGuard(without):
            dtype = dtype_of((args, kwargs))
            cast = [_cast(a, dtype) for a in args]
            return op(*cast, **{name: _cast(a, dtype) for name, a in kwargs.items()})

    return kernel


def _lower(arguments: Any) -> torch.dtype:
    return torch.get_autocast_dtype(state.backend)


def _float32(arguments: Any) -> torch.dtype:
    return torch.float32


def _widest(arguments: Any) -> torch.dtype:
    if any(x.dtype is torch.float32 for x in _floats(arguments)):
        return torch.float32
    return _lower(arguments)


def _floats(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        yield from _floats(list(value.values()))
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _floats(x)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if tensors.is_on_device(value):
        eligible = value.is_floating_point() and value.dtype is not torch.float64
        return value.to(dtype) if eligible else value
    if isinstance(value, list | tuple):
        return [_cast(x, dtype) for x in value]
    return value
