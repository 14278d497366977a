"""Guards on modules of others: a class of the same name whose `forward` is guarded."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from devicekit.guards.check import Options
from devicekit.guards.wrappers import check_of

__all__ = ["guard_module", "remove"]

_Guarding = Callable[..., Callable[..., Any]]

_classes: weakref.WeakKeyDictionary[type, dict[Options, type]] = weakref.WeakKeyDictionary()


def guard_module(module: nn.Module, options: Options, guarding: _Guarding) -> nn.Module:
    """Guard the `forward` of one module.

    Args:
        module: The module, changed in place.
        options: The options of the guard.
        guarding: Guards a function; a guarded one it gives back, or guards anew.
    """
    own = vars(module)
    if "forward" in own:  # put there by another library; a class could not reach past it
        own["forward"] = guarding(own["forward"], options, type(module).__name__)
        return module
    cls = type(module)
    original = vars(cls).get("__devicekit_original__", cls)
    if guarding(cls.forward, options) is cls.forward:
        return module
    module.__class__ = _guarded_class(original, options, guarding)
    return module


def remove(module: nn.Module) -> nn.Module:
    """Undo `guard_module`."""
    own = vars(module)
    check = check_of(own.get("forward"))
    if check is not None:
        own["forward"] = check.function
    original = vars(type(module)).get("__devicekit_original__")
    if original is not None:
        module.__class__ = original
    return module


def _guarded_class(cls: type, options: Options, guarding: _Guarding) -> type:
    """A class that differs from a module's in its `forward` only.

    A class, not an attribute of the instance: copies, replicas and compiled code then call
    `forward` with the right `self`, and nothing refers back to the module.
    """
    known = _classes.setdefault(cls, {})
    if options not in known:
        members = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__slots__": (),
            "__devicekit_original__": cls,
            "__reduce_ex__": functools.partialmethod(_reduce, options, guarding),
            "forward": guarding(cls.forward, options),  # type: ignore[attr-defined]
        }
        try:
            known[options] = type(cls)(cls.__name__, (cls,), members)
        except Exception as error:
            raise TypeError(
                f"`target` is a {cls.__name__}, a class that cannot be subclassed without more "
                f"({type(error).__name__}: {error}), as guarding one module does; write @guard "
                f"above `def forward` of {cls.__name__} instead"
            ) from error
    return known[options]


def _reduce(self: Any, options: Options, guarding: _Guarding, protocol: int) -> Any:
    """Pickle as the original class, which can be imported, and the options."""
    original = type(self).__devicekit_original__
    _, arguments, *rest = original.__reduce_ex__(self, protocol)
    return (_rebuild, (original, options, guarding, arguments[1:]), *rest)


def _rebuild(
    cls: type, options: Options, guarding: _Guarding, arguments: tuple[Any, ...]
) -> object:
    guarded = _guarded_class(cls, options, guarding)
    return guarded.__new__(guarded, *arguments)
