"""CPU versions of what only accelerators have: recurrent cells, `histc` of integers, ..."""

from typing import Any

import torch
from torch import Tensor

from devicekit.testing.simulation.engine import REPLACED

__all__: list[str] = []

_aten = torch.ops.aten


# C++ calls the `overrideable` pair for a backend that it does not know.
def _convolution(*args: Any) -> Tensor:
    return _aten.convolution.default(*args)  # type: ignore[no-any-return]


def _convolution_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    bias_sizes = [weight.shape[1] * groups if transposed else weight.shape[0]]
    return _aten.convolution_backward.default(  # type: ignore[no-any-return]
        grad,
        input,
        weight,
        bias_sizes,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        output_mask,
    )


# The cells follow aten/src/ATen/native/cuda/RNN.cu; the workspace holds what backward needs.
def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias
    if hidden_bias is not None:
        gates = gates + hidden_bias
    i, f, c, o = gates.chunk(4, 1)
    i, f, c, o = i.sigmoid(), f.sigmoid(), c.tanh(), o.sigmoid()
    cy = f * cx + i * c
    return o * cy.tanh(), cy, torch.cat([i, f, c, o], 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, c, o = workspace.chunk(4, 1)
    t = cy.tanh()
    gh = torch.zeros_like(cy) if grad_hy is None else grad_hy
    gc = gh * o * (1 - t * t)
    if grad_cy is not None:
        gc = gc + grad_cy
    gates = torch.cat(
        [
            gc * c * i * (1 - i),
            gc * cx * f * (1 - f),
            gc * i * (1 - c * c),
            gh * t * o * (1 - o),
        ],
        1,
    )
    return gates, gc * f, gates.sum(0) if has_bias else None


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    if input_bias is not None:
        input_gates = input_gates + input_bias
    if hidden_bias is not None:
        hidden_gates = hidden_gates + hidden_bias
    ir, iz, ie = input_gates.chunk(3, 1)
    hr, hz, hn = hidden_gates.chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (ie + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def _gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    r, z, n, hx, hn = workspace.chunk(5, 1)
    gz = grad_hy * (hx - n) * z * (1 - z)
    gn = grad_hy * (1 - z) * (1 - n * n)
    gr = gn * hn * r * (1 - r)
    gi, gh = torch.cat([gr, gz, gn], 1), torch.cat([gr, gz, gn * r], 1)
    return (
        gi,
        gh,
        grad_hy * z,
        gi.sum(0) if has_bias else None,
        gh.sum(0) if has_bias else None,
    )


# CUDA counts integers too, and mixture-of-experts models rely on it; the result has the input's
# type.
def _histc(x: Tensor, *args: Any) -> Tensor:
    if x.is_floating_point():
        return _aten.histc.default(x, *args)  # type: ignore[no-any-return]
    return _aten.histc.default(x.double(), *args).to(x.dtype)  # type: ignore[no-any-return]


REPLACED.update(
    {
        _aten.convolution_overrideable.default: _convolution,
        _aten.convolution_backward_overrideable.default: _convolution_backward,
        _aten._thnn_fused_lstm_cell.default: _lstm_cell,
        _aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
        _aten._thnn_fused_gru_cell.default: _gru_cell,
        _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
        _aten.histc.default: _histc,
    }
)
