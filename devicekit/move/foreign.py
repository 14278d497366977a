"""Objects that move themselves: whether to trust their method `to`, and how to call it."""

from __future__ import annotations

import copy
import inspect
from typing import Any, NamedTuple

import torch

from devicekit.tree import copy_containers, find_tensors
from devicekit.tree.anatomy import attributes_of, class_attribute, set_attributes
from devicekit.tree.containers import make_room

__all__ = ["move_foreign", "moves_itself"]


class _Call(NamedTuple):
    """How a method `to` takes its arguments."""

    by_keyword: bool
    non_blocking: bool


_known: dict[type, _Call | None] = {}


def _how_to_call(cls: type) -> _Call | None:
    if cls not in _known:
        make_room(_known)
        _known[cls] = _read_signature(cls)
    return _known[cls]


def _read_signature(cls: type) -> _Call | None:
    """How to call the `to` of this type, or None if it does not take a device.

    Many methods of this name are no movers: `Quantity.to(unit)`, `Timestamp.to(zone)`.
    """
    method = class_attribute(cls, "to")
    if not callable(method) or isinstance(method, type | property):
        return None
    try:
        found = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # written in C: only its documentation tells
        return _Call(False, False) if "device" in (method.__doc__ or "") else None
    if not isinstance(inspect.getattr_static(cls, "to"), staticmethod | classmethod):
        found = found[1:]  # self
    if not found:
        return None
    non_blocking = any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in found)
    first = found[0]
    if first.kind is first.VAR_POSITIONAL or _is_device(first):
        return _Call(first.kind is first.KEYWORD_ONLY, non_blocking)
    if first.kind is first.VAR_KEYWORD or any(p.name == "device" for p in found):
        others_needed = any(
            p.default is p.empty and p.name != "device"
            for p in found
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        )
        return None if others_needed else _Call(True, non_blocking)
    return None


def _is_device(parameter: inspect.Parameter) -> bool:
    return "dev" in parameter.name.lower() or "device" in str(parameter.annotation).lower()


def moves_itself(cls: type) -> bool:
    """Whether objects of this type that are no containers are to be moved by themselves."""
    if issubclass(cls, torch.nn.Module | torch.optim.Optimizer):
        return True
    return _how_to_call(cls) is not None


def move_foreign(x: Any, device: torch.device, non_blocking: bool) -> Any:
    """Ask an object to move itself.

    A copy is asked, because some move in place and return themselves, and the caller's object must
    stay as it is. A `to` that returns nothing says that it means the object itself, as a module's
    does: then the object takes over what the copy became, and is returned. An object that cannot
    be copied is asked itself. One that has tensors, all of them on the device, is returned as it
    is.
    """
    call = _how_to_call(type(x))
    assert call is not None
    tensors = [tensor for _, tensor in find_tensors(x)]
    if tensors and all(tensor.device == device for tensor in tensors):
        return x
    options = {"non_blocking": True} if non_blocking and call.non_blocking else {}
    twin = _copy(x)
    result = twin.to(device=device) if call.by_keyword else twin.to(device, **options)
    if result is not None:
        return result
    state = attributes_of(twin)
    if twin is x or not state:
        return twin
    set_attributes(x, state)
    return x


def _copy(x: Any) -> Any:
    """A copy with containers of its own, sharing only what is in them."""
    try:
        twin = copy.copy(x)
    except Exception:  # cannot be copied: its own `to` then decides what becomes of it
        return x
    if twin is x or class_attribute(type(x), "__copy__") is not None:
        return twin  # such a class knows what it has to copy
    return copy_containers(twin)
