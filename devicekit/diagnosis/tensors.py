"""What tensors an object brings into an operation, and how to say so in a few words."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from devicekit.diagnosis.frames import has_type
from devicekit.tree import dtype_and_shape, find_tensors
from devicekit.tree.containers import container_of

__all__ = ["MADE_UP", "describe", "devices_of", "is_free", "names_of_parameters", "tensors_of"]

# The mark of a tensor that only stands for one which cannot be seen, and has no shape to tell.
MADE_UP = "_devicekit_made_up"


def is_free(tensor: Tensor) -> bool:
    """Say whether a tensor may meet any other: torch lets CPU scalars pass nearly everywhere."""
    if tensor.device.type != "cpu" or is_lazy(tensor):
        return False
    return tensor.dim() == 0


def devices_of(tensors: Iterable[Tensor]) -> list[torch.device]:
    """The devices of some tensors, CPU scalars aside, in order of appearance."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if not is_free(tensor)))


def tensors_of(
    value: Any, name: str, known: dict[int, str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The tensors that an object brings along, each with its path.

    Optimizers bring parameters, gradients and state; partial functions what is bound in them.

    Args:
        value: The object.
        name: What the paths begin with.
        known: Names of parameters by identity, for the paths into an optimizer's state.
    """
    if has_type(value, Optimizer):
        yield from _of_optimizer(value, name, known or {})
    elif has_type(value, partial):
        yield from find_tensors(value.args, name=f"{name}.args")
        yield from find_tensors(value.keywords, name=f"{name}.keywords")
    elif _is_looked_into(type(value)):
        yield from find_tensors(value, name=name)


def _is_looked_into(cls: type) -> bool:
    """Whether the walker finds anything in objects of a class; asks the class, not the object."""
    if issubclass(cls, Tensor | nn.Module) or container_of(cls) is not None:
        return True
    return callable(getattr(cls, "to", None))


def _of_optimizer(
    optimizer: Optimizer, name: str, known: dict[int, str]
) -> Iterator[tuple[str, Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            place = f"{name}.param_groups[{number}]['params'][{index}]"
            place = known.get(id(parameter), place)
            yield place, parameter
            if parameter.grad is not None:
                yield f"{place}.grad", parameter.grad
            for key, one in optimizer.state.get(parameter, {}).items():
                if isinstance(one, Tensor):
                    yield f"{name}.state[{place}][{key!r}]", one


def names_of_parameters(objects: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """The names of the parameters of the modules among some objects, by identity."""
    names: dict[int, str] = {}
    for root, module in objects:
        if has_type(module, nn.Module):
            for path, tensor in find_tensors(module, name=root):
                names.setdefault(id(tensor), path)
    return names


def describe(value: Any) -> str:
    """A value in a few words: `float32[32, 3]`, `Net: 12 parameters, 2 buffers`."""
    if has_type(value, Tensor):
        if MADE_UP in vars(value):
            return "tensor"
        return dtype_and_shape(value)
    if has_type(value, nn.Module):
        return f"{type(value).__name__}: {_amount(value)}"
    return type(value).__name__


def _amount(module: nn.Module) -> str:
    found = (
        (sum(1 for _ in nn.Module.named_parameters(module)), "parameter"),
        (sum(1 for _ in nn.Module.named_buffers(module)), "buffer"),
    )
    parts = [f"{number} {word}{'' if number == 1 else 's'}" for number, word in found if number]
    return ", ".join(parts) or "no parameters"
