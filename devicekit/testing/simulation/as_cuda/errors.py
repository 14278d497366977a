"""Device checks that C++ makes itself, in whose text the device has its other name."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.as_cuda.devices import NAME
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]

_RECURRENT = ["lstm", "gru", "rnn_tanh", "rnn_relu"]
_CELLS = ["lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"]


def install(patches: Patches) -> None:
    """Replace the functions that raise such errors."""
    for name in [*_RECURRENT, *_CELLS]:
        patches.set(private.VF, name, _renaming(getattr(private.VF, name)))
    functional = torch.nn.functional
    patches.set(
        functional,
        "scaled_dot_product_attention",
        _renaming(functional.scaled_dot_product_attention),
    )
    run_backward = _renaming(torch.autograd.graph._engine_run_backward)
    patches.set(torch.autograd.graph, "_engine_run_backward", run_backward)
    patches.set(torch.autograd, "_engine_run_backward", run_backward)
    grad = private.tensor_grad
    patches.set(
        torch.Tensor, "grad", property(grad.__get__, _renaming(grad.__set__), grad.__delete__)
    )


def _renaming(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if len(error.args) == 1 and isinstance(error.args[0], str):
                text = error.args[0].replace(f"{state.backend}:", f"{NAME}:")
                error.args = (text.replace(f"'{state.backend}'", f"'{NAME}'"),)
            raise

    return wrapper
