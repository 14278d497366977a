"""Finding tensors, and the Python expressions that lead to them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from devicekit.tree.anatomy import attributes_of, class_attribute, is_a
from devicekit.tree.containers import ATOMS, changed, container_of
from devicekit.tree.steps import NO_KEY, Step, attribute_step, is_name

__all__ = ["find_hidden", "find_tensors", "member_step"]


class _Path:
    """One step on the way from the root to an object; the text is only put together when needed."""

    __slots__ = ("parent", "step")

    def __init__(self, parent: _Path | None, step: Step) -> None:
        self.parent = parent
        self.step = step

    def __str__(self) -> str:
        before: list[str] = []
        after: list[str] = []
        path: _Path | None = self
        while path is not None:
            before.append(path.step.before)
            after.append(path.step.after)
            path = path.parent
        return "".join(before) + "".join(reversed(after))


def find_tensors(data: object, *, name: str = "data") -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `data`, each with the Python expression that leads to it.

    Looks into all containers that the walker knows (see `devicekit.tree.containers`), into the
    parameters and buffers of modules, the parameters and state of optimizers, and into the
    attributes of objects that can move themselves (that have a method `to`). A tensor that is
    there twice comes twice; a container that is there twice is looked into once. The
    `batch_sizes` of a `PackedSequence`, which live on the CPU by contract, are left out.

    Args:
        data: Anything.
        name: What the expressions begin with.

    Example:
        >>> batch = {"image": torch.zeros(2), "boxes": [(torch.ones(1), "cat")]}
        >>> [path for path, tensor in find_tensors(batch, name="batch")]
        ["batch['image']", "batch['boxes'][0][0]"]
    """
    yield from _walk(data, name, hidden=False)


def find_hidden(
    data: object,
    *,
    name: str = "data",
    leave: Callable[[Step, Callable[[], str], object], bool] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """As `find_tensors`, and also what no mover can reach.

    Looks into the attributes of every object, at the keys of dicts, into what functions and methods
    carry with them (closures, defaults, `self`, the arguments of a `partial`), and into the plain
    attributes of modules. Not into classes, modules of Python, and the globals of functions.

    Args:
        data: Anything.
        name: What the expressions begin with.
        leave: Says of an object whether to pass over it, from the last step to it, a function that
            writes its path, and itself.
    """
    yield from _walk(data, name, hidden=True, leave=leave)


def _walk(
    data: object,
    name: str,
    *,
    hidden: bool,
    leave: Callable[[Step, Callable[[], str], object], bool] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    seen: set[int] = set()
    keep_alive: list[object] = []  # so that no id is used twice
    stack: list[tuple[_Path, object]] = [(_Path(None, Step(NO_KEY, name)), data)]
    while stack:
        path, x = stack.pop()
        if type(x) in ATOMS or (leave is not None and leave(path.step, path.__str__, x)):
            continue
        if is_a(x, Tensor):
            yield str(path), x
            continue
        if id(x) in seen:
            continue
        seen.add(id(x))
        keep_alive.append(x)
        children = _children(x, hidden)
        stack.extend((_Path(path, step), child) for step, child in reversed(children))


def _children(x: Any, hidden: bool) -> list[tuple[Step, Any]]:
    container = container_of(type(x))
    if container is not None:
        steps, values = container.steps(x), container.children(x)
        if len(steps) != len(values):
            raise changed(x)
        children = list(zip(steps, values, strict=True))
        return children + _keys(x) if hidden else children
    if is_a(x, nn.Module):
        return _of_module(x, hidden)
    if is_a(x, torch.optim.Optimizer):
        return [(Step(n, f".{n}"), getattr(x, n)) for n in ("param_groups", "state")]
    if hidden:
        return _of_anything(x)
    if callable(class_attribute(type(x), "to")):
        return _of_object(x)
    return []


def _keys(x: Any) -> list[tuple[Step, Any]]:
    """The keys of a dict, which no mover replaces: who looks up by the old one must find it."""
    if not issubclass(type(x), dict):
        return []
    keys = enumerate(dict.keys(x))
    return [(Step(NO_KEY, f")[{i}]", "list("), key) for i, key in keys if type(key) not in ATOMS]


def _of_module(module: nn.Module, hidden: bool) -> list[tuple[Step, Any]]:
    found = [
        (member_step(module, name), value)
        for name, value in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
            *((n, m) for n, m in vars(module)["_modules"].items() if m is not None),
        )
    ]
    if not hidden:
        return found
    registered = ("_parameters", "_buffers", "_modules")
    return found + [
        (attribute_step(type(module), name), value)
        for name, value in vars(module).items()
        if name not in registered
    ]


def member_step(module: nn.Module, name: str) -> Step:
    """The way from a module to one of its parameters, buffers or modules."""
    if isinstance(module, nn.ModuleDict | nn.ParameterDict):
        return Step(name, f"[{name!r}]")
    if is_name(name):
        return Step(name, f".{name}")
    if name.isdecimal() and isinstance(module, nn.Sequential | nn.ModuleList | nn.ParameterList):
        return Step(name, f"[{name}]")
    return Step(name, f", {name!r})", "getattr(")


# What libraries keep on the CPU on purpose, as torch does with the `batch_sizes` of a
# PackedSequence: the first name of the module of a class, and attributes.
_ON_CPU_BY_CONTRACT = {"torch_geometric": ("_slice_dict", "_inc_dict")}


def _of_object(x: Any) -> list[tuple[Step, Any]]:
    cls = type(x)
    left_out = _ON_CPU_BY_CONTRACT.get(cls.__module__.partition(".")[0], ())
    return [
        (attribute_step(cls, name), value)
        for name, value in attributes_of(x).items()
        if name not in left_out
    ]


def _of_anything(x: Any) -> list[tuple[Step, Any]]:
    if any(is_a(x, cls) for cls in (type, types.ModuleType, str, bytes)):
        return []
    if is_a(x, types.MethodType):
        return [(Step(NO_KEY, ".__self__"), x.__self__), (Step(NO_KEY, ".__func__"), x.__func__)]
    if is_a(x, types.FunctionType):
        return _of_function(x)
    if is_a(x, partial):
        return [(Step(NO_KEY, f".{n}"), getattr(x, n)) for n in ("func", "args", "keywords")]
    return _of_object(x)


def _of_function(x: types.FunctionType) -> list[tuple[Step, Any]]:
    found: list[tuple[Step, Any]] = []
    for i, cell in enumerate(x.__closure__ or ()):
        try:
            found.append((Step(NO_KEY, f".__closure__[{i}].cell_contents"), cell.cell_contents))
        except ValueError:  # the cell is empty
            continue
    for name in ("__defaults__", "__kwdefaults__", "__dict__"):
        found.append((Step(NO_KEY, f".{name}"), getattr(x, name)))
    return found
