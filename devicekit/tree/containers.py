"""Which types are containers.

Containers are:

- dict, list, tuple, set, frozenset, deque, their relatives in `collections`, and all subclasses;
- dataclasses and attrs classes of every kind, `SimpleNamespace`;
- any class derived from `collections.abc.Mapping`, `Sequence` or `Set`, unless it has a method
  `to`: such a class, for example a `TensorDict`, knows better how to move itself;
- types added by `register`.

Tensors, modules, optimizers and enums are none, whatever they derive from.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from devicekit.errors import MoveError
from devicekit.tree.anatomy import (
    ANY_MAPPING,
    MAPPING_PROXY,
    OBJECT,
    PACKED_SEQUENCE,
    PAYLOADS,
    STRUCT_SEQUENCE,
    Container,
    class_attribute,
    compose,
    nothing_to_fill,
)
from devicekit.tree.steps import Step

__all__ = [
    "ATOMS",
    "changed",
    "container_of",
    "forget_on_register",
    "make_room",
    "register",
    "unregister",
]

C = TypeVar("C")

ATOMS: frozenset[type] = frozenset(
    {str, bytes, bytearray, memoryview, int, float, complex, bool, type(None), type(...), range}
    | {slice, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types that cannot hold a tensor: passed through without a look."""

_registered: dict[type, Container] = {}
_known: dict[type, Container | None] = {}
_dependent: list[dict[Any, Any]] = []


def container_of(cls: type) -> Container | None:
    """How objects of exactly this type are taken apart, or None if they are not looked into."""
    try:
        return _known[cls]
    except KeyError:
        make_room(_known)
        container = _known[cls] = _resolve(cls)
        return container


def register(
    cls: type[C],
    flatten: Callable[[C], Mapping[str, object]],
    unflatten: Callable[[C, dict[str, Any]], C],
) -> None:
    """Teach the walker a type: moving, pinning, packing and naming paths then look into it.

    Objects of subclasses are taken apart the same way, unless a class nearer to them is registered.

    Args:
        cls: The type.
        flatten: From an object, its children, each under the Python text that leads to it from the
            object, such as ".boxes" or "['mask']".
        unflatten: From the object and the new children, under the same texts, a new object of the
            same type. It must not change the object.

    Raises:
        TypeError: `cls` is no type, or that of a tensor or module, which are moved as a whole.

    Example:
        >>> import torch
        >>> class Sample:  # hides its tensor in a closure
        ...     def __init__(self, image):
        ...         self.image = lambda: image
        >>> def flatten(sample):
        ...     return {".image()": sample.image()}
        >>> def unflatten(sample, new):
        ...     return Sample(new[".image()"])
        >>> register(Sample, flatten, unflatten)
        >>> from devicekit import find_tensors
        >>> [path for path, tensor in find_tensors([Sample(torch.zeros(2))])]
        ['data[0].image()']
        >>> unregister(Sample)
    """
    if not isinstance(cls, type):
        raise TypeError(f"`cls` must be a type, but is {cls!r}")
    if issubclass(cls, Tensor | nn.Module):
        raise TypeError(
            f"`cls` must not be a tensor or module type, but is {cls!r}: these are moved as a whole"
        )

    demand = (
        f"the `flatten` registered for {cls.__qualname__} must give a dict of the children, each "
        "under the text that leads to it, such as '.boxes'"
    )

    def flattened(x: Any) -> Mapping[str, object]:
        found = flatten(x)
        kind = type(found)
        if not issubclass(kind, Mapping):
            raise MoveError(f"{demand}, but gave a {kind.__name__}")
        for text in found:
            if type(text) is not str:
                raise MoveError(f"{demand}, but a key is a {type(text).__name__}")
        return found

    def children(x: Any) -> list[Any]:
        return list(flattened(x).values())

    def steps(x: Any) -> list[Step]:
        return [Step(text.strip(".[]'\"()"), text) for text in flattened(x)]

    def make(x: Any, values: list[Any]) -> Any:
        texts = list(flattened(x))
        if len(texts) != len(values):
            raise changed(x)
        twin = unflatten(x, dict(zip(texts, values, strict=True)))
        if type(twin) is not type(x):
            raise MoveError(
                f"the `unflatten` registered for {cls.__qualname__} must give back an object of "
                f"type {type(x).__qualname__}, but gave {type(twin).__qualname__}"
            )
        return twin

    _registered[cls] = Container(children, steps, make, nothing_to_fill, immutable=True, looks=True)
    _forget()


def changed(x: object) -> MoveError:
    """The error for an object that has other children each time it is asked for them."""
    return MoveError(
        f"a {type(x).__qualname__} changed while it was looked at: a `flatten` must give the same "
        "children each time, and no other thread may change what is moved"
    )


def unregister(cls: type) -> None:
    """Undo `register` for this type.

    Args:
        cls: The type, as it was registered.

    Raises:
        KeyError: The type is not registered.

    Example:
        >>> class Sample: ...
        >>> register(Sample, vars, lambda sample, new: Sample())
        >>> unregister(Sample)
    """
    if cls not in _registered:
        raise KeyError(
            f"`cls` is {cls!r}, which is not registered: give a type that `register` had"
        )
    del _registered[cls]
    _forget()


def forget_on_register(cache: dict[Any, Any]) -> None:
    """Have this cache of decisions about types cleared whenever a type is registered or undone."""
    _dependent.append(cache)


def make_room(cache: dict[Any, Any]) -> None:
    """Empty a cache of decisions about types that has grown: it keeps types alive."""
    if len(cache) >= 1000:
        cache.clear()


def _forget() -> None:
    _known.clear()
    for cache in _dependent:
        cache.clear()


def _resolve(cls: type) -> Container | None:
    """The rules, from the most to the least specific."""
    for base in cls.__mro__:
        if base in _registered:
            return _registered[base]
    if issubclass(cls, Tensor | nn.Module | torch.optim.Optimizer | Enum) or cls in ATOMS:
        return None
    if issubclass(cls, PackedSequence):
        return PACKED_SEQUENCE
    if issubclass(cls, types.MappingProxyType):
        return MAPPING_PROXY
    if issubclass(cls, tuple) and class_attribute(cls, "n_sequence_fields") is not None:
        return STRUCT_SEQUENCE
    for base, payload in PAYLOADS.items():
        if issubclass(cls, base):
            return compose(cls, payload)
    fields = ("__dataclass_fields__", "__attrs_attrs__")
    if any(class_attribute(cls, name) is not None for name in fields):
        return compose(cls, OBJECT)
    if issubclass(cls, Mapping | Sequence | Set) and not callable(class_attribute(cls, "to")):
        return compose(cls, OBJECT) or (ANY_MAPPING if issubclass(cls, Mapping) else None)
    return None
