"""Whole recurrent layers in one call, as cuDNN does: step by step they would cost 20 times as much.

`nn.LSTM`, `nn.GRU` and `nn.RNN` call four functions, which are replaced here. A call that cuDNN
would not take goes to torch's own code: tensors on more than one device, so that it raises what
CUDA raises; cuDNN switched off; autocast; `torch.func` transforms.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from devicekit.testing.simulation import private, state, tensors
from devicekit.testing.simulation.engine import run_random
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Replace `_VF.lstm`, `gru`, `rnn_tanh` and `rnn_relu`, which the modules of torch.nn call."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        patches.set(private.VF, name, _layer(getattr(torch, name)))


@functools.cache
def _layer(torchs_own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(torchs_own)
    def layer(*args: Any) -> Any:
        if args[0].get_device() < 0:
            return torchs_own(*args)
        flat, build = _flatten(args)
        if not _cudnn_would(flat):
            return torchs_own(*args)
        return _Layer.apply(torchs_own, build, *flat)  # type: ignore[no-untyped-call]

    return layer


def _flatten(args: tuple[Any, ...]) -> tuple[list[Tensor], Callable[[list[Tensor]], list[Any]]]:
    """Return all tensors of a call, and a function that puts others in their places."""
    flat: list[Tensor] = []
    plan: list[Any] = []
    for a in args:
        if isinstance(a, Tensor):
            plan.append(len(flat))
            flat.append(a)
        elif isinstance(a, list | tuple) and a and isinstance(a[0], Tensor):
            plan.append(range(len(flat), len(flat) + len(a)))
            flat += a
        else:
            plan.append((a,))

    def build(xs: list[Tensor]) -> list[Any]:
        def argument(p: Any) -> Any:
            if isinstance(p, int):
                return xs[p]
            return [xs[i] for i in p] if isinstance(p, range) else p[0]

        return [argument(p) for p in plan]

    return flat, build


def _cudnn_would(flat: list[Tensor]) -> bool:
    if state.config is None or not torch.backends.cudnn.enabled or private.functorch_is_active():
        return False
    if torch.is_autocast_enabled(state.backend):
        return False
    # The lengths of a packed sequence are on the CPU; they are its only integers.
    devices = {x.get_device() for x in flat if x.is_floating_point()}
    return len(devices) == 1 and -1 not in devices


class _Layer(torch.autograd.Function):
    """Runs the CPU's layer on the bytes of the device tensors, and keeps its graph for backward.

    Like cuDNN's it cannot be differentiated twice.
    """

    @staticmethod
    def forward(ctx: Any, run: Any, build: Any, *flat: Tensor) -> tuple[Tensor, ...]:
        index = next(x.get_device() for x in flat if x.get_device() >= 0)
        if state.before_kernel is not None:
            state.before_kernel(flat, ())
        low = [tensors.to_cpu(x) if tensors.is_on_device(x) else x for x in flat]
        for cpu, x, needed in zip(low, flat, ctx.needs_input_grad[2:], strict=True):
            if needed and x.is_floating_point():
                cpu.requires_grad_()
        with torch.enable_grad():
            results = run_random(run, index, *build(low))
        ctx.save_for_backward(*flat)  # so that changing one of them before backward is an error
        ctx.low, ctx.results = low, results
        return tuple(tensors.to_device(r.detach(), index) for r in results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flat = ctx.saved_tensors
        if state.before_kernel is not None:
            state.before_kernel([g for g in grads if g is not None], ())
        wanted = [cpu for cpu in ctx.low if cpu.requires_grad]
        pairs = [
            (result, tensors.to_cpu(grad))
            for result, grad in zip(ctx.results, grads, strict=True)
            if grad is not None and result.requires_grad
        ]
        found = iter(
            torch.autograd.grad(
                [result for result, _ in pairs],
                wanted,
                [grad for _, grad in pairs],
                retain_graph=True,  # the graph on the device decides how often, and dies with `ctx`
                allow_unused=True,
            )
        )
        index = next(x.get_device() for x in flat if x.get_device() >= 0)
        lifted = []
        for cpu in ctx.low:
            grad = next(found) if cpu.requires_grad else None
            lifted.append(None if grad is None else tensors.to_device(grad, index))
        if torch.is_grad_enabled():  # `create_graph=True`
            source = next(x for x in flat if x.requires_grad)
            once: Any = _Once.apply
            lifted = [None if g is None else once(source, g) for g in lifted]
        return None, None, *lifted


class _Once(torch.autograd.Function):
    """Passes a gradient on, and refuses to be differentiated itself, as cuDNN's layers do."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, grad: Tensor) -> Tensor:
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # tools/autograd/derivatives.yaml, _cudnn_rnn_backward
        raise NotImplementedError(
            "the derivative for '_cudnn_rnn_backward' is not implemented. Double backwards is not "
            "supported for CuDNN RNNs due to limitations in the CuDNN API. To run double "
            "backwards, please disable the CuDNN backend temporarily while running the forward "
            "pass of your RNN. For example: \nwith torch.backends.cudnn.flags(enabled=False):\n"
            "    output = model(inputs)"
        )
