"""Modules that move by code of their own what they have not registered, such as metrics."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

from torch import Tensor, nn

from devicekit.diagnosis.carrying import held
from devicekit.diagnosis.frames import instance_dict, is_library
from devicekit.diagnosis.tensors import is_free

__all__ = ["moves", "states_of"]

_GENERIC = frozenset({"__dict__", "setattr", "vars"})


def _overrides_apply(module: nn.Module) -> bool:
    """Say whether a module's class overrides `_apply`, which a move calls on every module.

    torch's own overrides, such as that of the recurrent layers, do not look at what subclasses add.
    """
    return next(_overrides(module, "_apply"), None) is not None


def moves(module: nn.Module, name: str, *, is_root: bool) -> bool:
    """Say whether a module moves an attribute by code of its own.

    An override of `to` counts where it is called, which is on the model itself alone, and where it
    speaks of the attribute: many only look at the arguments.

    Args:
        module: The module.
        name: The attribute.
        is_root: Whether the module is the model that the user moves.
    """
    if _overrides_apply(module):
        return True
    if not is_root:
        return False
    names = {n for one in _overrides(module, "to") for n in _names_in(one.__code__)}
    for helper in sorted(names):
        function = getattr(type(module), helper, None)
        if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
            names |= set(_names_in(function.__code__))
    return name in names or not _GENERIC.isdisjoint(names)


def _overrides(module: nn.Module, method: str) -> Iterator[FunctionType]:
    for cls in type(module).__mro__:
        function = vars(cls).get(method)
        while isinstance(function, FunctionType) and "__wrapped__" in vars(function):
            function = vars(function)["__wrapped__"]
        if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
            yield function


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant  # as in setattr(self, "cache", ...)
        elif isinstance(constant, CodeType):
            yield from _names_in(constant)


def states_of(module: nn.Module) -> list[Tensor]:
    """The tensors that a module moves itself: those in its attributes, CPU scalars aside."""
    if not _overrides_apply(module):
        return []
    values = [v for k, v in instance_dict(module).items() if not k.startswith("__")]
    found = [one for value in values for _, one in held(value, "") if isinstance(one, Tensor)]
    registered = {id(one) for one in (*module.parameters(), *module.buffers())}
    return [one for one in found if not is_free(one) and id(one) not in registered]
