"""What objects, hooks and tensors carry along unseen: the questions that `audit` asks of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.tree import find_tensors
from devicekit.tree.containers import container_of

__all__ = ["carried", "held", "is_copy", "name_of", "was_parameter"]


def held(value: Any, path: str) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """The tensors and modules in a container, a partial function, or a plain object's attributes.

    Modules are not looked into: they are layers.
    """
    seen: set[int] = set()
    pending: list[tuple[str, Any, bool]] = [(path, value, True)]
    while pending:
        where, one, is_top = pending.pop()
        if isinstance(one, Tensor | nn.Module):
            yield where, one
            continue
        if isinstance(one, Optimizer) or id(one) in seen:
            continue
        seen.add(id(one))
        container = container_of(type(one))
        if container is not None:
            children = zip(container.steps(one), container.children(one), strict=True)
            found = [
                (f"{step.before}{where}{step.after}", child, False) for step, child in children
            ]
        elif isinstance(one, functools.partial):
            found = [(f"{where}.args[{i}]", child, False) for i, child in enumerate(one.args)]
            found += [(f"{where}.keywords[{k!r}]", c, False) for k, c in one.keywords.items()]
        elif is_top and not isinstance(one, FunctionType | MethodType | type):
            own = getattr(one, "__dict__", None)
            own = own if isinstance(own, dict) else {}
            found = [(f"{where}.{k}", c, False) for k, c in own.items() if isinstance(c, Tensor)]
        else:
            continue
        pending.extend(reversed(found))


def carried(hook: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a hook carries along: in its closure, its defaults, what is bound."""
    while isinstance(hook, functools.partial):
        yield from find_tensors(list(hook.args), name="args")
        yield from find_tensors(hook.keywords, name="keywords")
        hook = hook.func
    if isinstance(hook, MethodType):
        hook = hook.__func__
    if not isinstance(hook, FunctionType):
        return
    names = hook.__code__.co_freevars
    for name, cell in zip(names, hook.__closure__ or (), strict=True):
        try:
            yield from find_tensors(_not_a_module(cell.cell_contents), name=name)
        except ValueError:  # a cell that was not filled yet
            continue
    for default in hook.__defaults__ or ():
        yield from find_tensors(_not_a_module(default), name="a default")


def _not_a_module(value: Any) -> Any:
    return None if isinstance(value, nn.Module | Optimizer) else value


def name_of(hook: Any) -> str:
    """The name of a hook, as its author would say it."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return str(name).rpartition("<locals>.")[2]


def was_parameter(tensor: Tensor, registered: dict[int, str]) -> bool:
    """Whether a tensor is a Parameter that went through `.to()`: a copy with a history."""
    node = tensor.grad_fn
    if node is None or "ToCopy" not in type(node).__name__:
        return False
    before = [one for one, _ in node.next_functions if one is not None]
    if len(before) != 1:
        return False
    leaf = getattr(before[0], "variable", None)  # of an AccumulateGrad
    return isinstance(leaf, nn.Parameter) and id(leaf) not in registered


def is_copy(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same values in memory of their own."""
    if one is other or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if "meta" in (one.device.type, other.device.type) or one.data_ptr() == other.data_ptr():
        return False
    first, second = one.detach().cpu(), other.detach().cpu()
    # Layers that were filled with one number agree by chance.
    return bool(torch.equal(first, second)) and bool((first != first.flatten()[:1]).any())
