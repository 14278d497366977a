"""The simulated accelerator under CUDA's name, for code that says "cuda" and `.cuda()` itself.

Torch's C++ keeps calling the device by the backend's own name; what is changed is where Python and
C++ meet. Every place is replaced while `simulate("cuda")` is active and put back afterwards:

====================  ==========================================================================
module                what it replaces
====================  ==========================================================================
`arguments`           everything that takes a device: "cuda:1" becomes the simulated device
`attributes`          everything that shows one: `Tensor.device`, `.is_cuda`, `.type()`, ...
`low_level`           the C functions under `torch.cuda`, whose Python code runs as it is
`torch_cuda`          what `torch.cuda` keeps itself: state, streams, events, legacy types
`errors`              the functions whose errors C++ writes with the other name in them
`collectives`         the C functions under `torch.nn.parallel.comm`, for `DataParallel`
====================  ==========================================================================
"""

import sys

import torch

from devicekit.testing.simulation import state
from devicekit.testing.simulation.as_cuda import (
    arguments,
    attributes,
    collectives,
    devices,
    errors,
    low_level,
    torch_cuda,
)
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Put the disguise on; `patches.undo()` takes it off.

    Args:
        patches: Where each replacement is noted.
    """
    patches.set(state, "shown", devices.outward)
    low_level.install(patches)
    torch_cuda.install(patches)
    attributes.install(patches)
    arguments.install(patches)
    errors.install(patches)
    collectives.install(patches)
    _pass_compile_through(patches)


def _pass_compile_through(patches: Patches) -> None:
    """Let `torch.compile` return what it is given, and what was compiled before run eagerly.

    Dynamo rebuilds tensors from the device they show, and C++ has no "cuda" here. Compiled code
    must compute what eager code computes, so running it eagerly changes no result.
    """

    def compile(model: object = None, **options: object) -> object:
        return (lambda function: function) if model is None else model

    patches.set(torch, "compile", compile)
    if "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
        patches.later(lambda: stance.__exit__(None, None, None))
