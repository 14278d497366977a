"""Which device a module is on, without walking over its parameters at each call."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Final, NamedTuple

import torch
from torch import nn

from devicekit.diagnosis.tensors import is_free

__all__ = ["Spread", "device_of", "look_at", "nearest_parameter"]


class Spread:
    """The answer for a module whose tensors are on several devices."""


SPREAD: Final = Spread()


class _Way(NamedTuple):
    """How to get from a module to one of its parameters or buffers. Text only: it keeps nothing."""

    names: tuple[str, ...]
    registry: str
    key: str

    def device(self, module: nn.Module) -> torch.device:
        owner = module
        for name in self.names:
            owner = vars(owner)["_modules"][name]
        device: torch.device = vars(owner)[self.registry][self.key].device
        return device


# For each module that was looked at: the way to its nearest tensor, and for a module that is
# spread, the way to one on another device. The ways are walked at each call, so the answer is right
# whatever was moved or replaced since; where one ends in nothing, the module is looked at again.
_ways: dict[int, tuple[_Way, _Way | None]] = {}
_alive: dict[int, weakref.ref[nn.Module]] = {}


def device_of(module: nn.Module) -> torch.device | Spread | None:
    """The device of a module, `SPREAD`, or None for a module without tensors."""
    known = _ways.get(id(module))
    if known is None:
        return look_at(module)
    nearest, other = known
    try:
        device = nearest.device(module)
        if other is None:
            return device
        if other.device(module) != device:
            return SPREAD
    except (AttributeError, KeyError):  # something on the way was replaced
        pass
    return look_at(module)


def look_at(module: nn.Module) -> torch.device | Spread | None:
    """As `device_of`, by looking at all parameters and buffers."""
    if _is_dispatched(module):
        return SPREAD
    ways: dict[torch.device, _Way] = {}
    for way in _ways_into(module):
        device = way.device(module)
        if device not in ways or len(way.names) < len(ways[device].names):
            ways[device] = way
    if not ways:
        return None
    (device, nearest), *others = ways.items()
    _remember(module, nearest, others[0][1] if others else None)
    return SPREAD if others else device


def nearest_parameter(module: nn.Module) -> tuple[tuple[str, ...], str] | None:
    """The names of the modules on the way to a parameter, and its key; None if there is none.

    Only for a module that is on one device.
    """
    known = _ways.get(id(module))
    if known is None or known[1] is not None or known[0].registry != "_parameters":
        return None
    return known[0].names, known[0].key


def _remember(module: nn.Module, nearest: _Way, other: _Way | None) -> None:
    key = id(module)
    if key not in _alive or _alive[key]() is not module:
        _alive[key] = weakref.ref(module, functools.partial(_forget, key))
    _ways[key] = (nearest, other)


def _forget(key: int, _: object) -> None:
    _ways.pop(key, None)
    _alive.pop(key, None)


def _is_dispatched(module: nn.Module) -> bool:
    """Whether another library places the parts of a module: accelerate, or a pipeline of it."""
    placed = vars(module).get("hf_device_map")
    if placed is not None and len(set(map(str, placed.values()))) > 1:
        return True
    return any("_hf_hook" in vars(one) for one in nn.Module.modules(module))


def _ways_into(module: nn.Module) -> Iterator[_Way]:
    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], nn.Module]] = [((), module)]
    while pending:
        names, one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for registry in ("_parameters", "_buffers"):
            for key, tensor in vars(one)[registry].items():
                if tensor is not None and not is_free(tensor):
                    yield _Way(names, registry, key)
        children = vars(one)["_modules"].items()
        pending.extend(((*names, name), child) for name, child in children if child is not None)
