"""How objects are taken apart into children, and put together again without their constructors.

An object's children are what its built-in base holds (the items of a dict, a list, a tuple, a set,
a deque), then its attributes (`__dict__` and `__slots__`). To put it together, the built-in base
makes an empty twin, which is filled. So required arguments, frozen classes, validators and
`__post_init__` are no obstacle, and nothing is lost that was added to the object later.
"""

from __future__ import annotations

import types
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, MutableMapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeGuard, TypeVar

from devicekit.tree.steps import NO_KEY, Step, attribute_step, indexed, is_name, keyed, listed

__all__ = [
    "ANY_MAPPING",
    "MAPPING_PROXY",
    "OBJECT",
    "PACKED_SEQUENCE",
    "PAYLOADS",
    "STRUCT_SEQUENCE",
    "Container",
    "attributes_of",
    "class_attribute",
    "compose",
    "is_a",
    "nothing_to_fill",
    "set_attributes",
]


T = TypeVar("T")


def is_a(x: object, cls: type[T]) -> TypeGuard[T]:
    """`isinstance`, also for objects that raise when they are asked for their `__class__`.

    Such are proxies whose object is gone, or not there yet.
    """
    try:
        return isinstance(x, cls)
    except Exception:  # whatever the object raised: its type is left to ask
        return issubclass(type(x), cls)


def class_attribute(cls: type, name: str) -> Any:
    """What a class or one of its bases defines under this name, else None.

    The metaclass is not asked: its attributes are not the objects' own, and its `__getattr__` may
    raise anything, or have an answer to every name. So may a descriptor; then there is nothing.
    """
    if not any(name in vars(base) for base in cls.__mro__):
        return None
    try:
        return getattr(cls, name)
    except Exception:
        return None


@dataclass(frozen=True, slots=True)
class Container:
    """How the objects of one type are taken apart and put together again.

    Attributes:
        children: The children of an object, always in the same order.
        steps: The ways to these children, in the same order.
        make: From the original and the new children, the twin. A mutable twin is made empty.
        fill: Puts into the twin (second argument) what `make` left out.
        immutable: Whether `make` needs the children.
        looks: Whether making it runs code of others that may look at the children: their hash, a
            constructor. So they must be the real ones, with their values.
        kind: The shape of exactly these types, for loops that specialise on it: a "record" is an
            object whose whole state is its `__dict__`.
    """

    children: Callable[[Any], list[Any]]
    steps: Callable[[Any], list[Step]]
    make: Callable[[Any, list[Any]], Any]
    fill: Callable[[Any, Any, list[Any]], None]
    immutable: bool = False
    looks: bool = False
    kind: Literal["dict", "list", "tuple", "namedtuple", "record", "other"] = "other"


class _Payload(NamedTuple):
    """What a built-in base holds, apart from the attributes. All by the base's own methods."""

    values: Callable[[Any], list[Any]]
    steps: Callable[[Any], list[Step]]
    make: Callable[[Any, list[Any]], Any]
    fill: Callable[[Any, Any, list[Any]], None]
    immutable: bool = False
    looks: bool = False
    transparent: str | None = None  # an attribute that paths leave out: `x[0]` is `x.data[0]`


def nothing_to_fill(x: Any, twin: Any, values: list[Any]) -> None:
    """The `fill` of a container that `make` leaves complete."""


def _of_tuple(x: Any) -> list[Step]:
    cls, count = type(x), tuple.__len__(x)
    fields = class_attribute(cls, "_fields")
    if type(fields) is not tuple or len(fields) != count:
        return indexed(count)
    return [
        Step(name, f".{name}")
        if is_name(name) and class_attribute(cls, name) is not None
        else Step(name, f"[{i}]")
        for i, name in enumerate(fields)
    ]


def _fill_dict(x: Any, twin: Any, values: list[Any]) -> None:
    dict.update(twin, zip(dict.keys(x), values, strict=True))


def _fill_ordered_dict(x: Any, twin: Any, values: list[Any]) -> None:
    for key, value in zip(OrderedDict.keys(x), values, strict=True):
        OrderedDict.__setitem__(twin, key, value)


def _make_defaultdict(x: Any, values: list[Any]) -> Any:
    twin = defaultdict.__new__(type(x))
    defaultdict.__init__(twin, vars(defaultdict)["default_factory"].__get__(x))
    return twin


def _make_deque(x: Any, values: list[Any]) -> Any:
    twin = deque.__new__(type(x))
    deque.__init__(twin, (), vars(deque)["maxlen"].__get__(x))
    return twin


OBJECT = _Payload(
    values=lambda x: [],
    steps=lambda x: [],
    make=lambda x, values: object.__new__(type(x)),
    fill=nothing_to_fill,
)

_DICT = _Payload(
    values=lambda x: list(dict.values(x)),
    steps=lambda x: keyed(dict.keys(x)),
    make=lambda x, values: dict.__new__(type(x)),
    fill=_fill_dict,
)

# The order of this table counts: an OrderedDict is a dict too.
PAYLOADS: dict[type, _Payload] = {
    OrderedDict: _Payload(
        # `dict.keys` would give the order of insertion, which `move_to_end` does not change.
        values=lambda x: list(OrderedDict.values(x)),
        steps=lambda x: keyed(OrderedDict.keys(x)),
        make=lambda x, values: OrderedDict.__new__(type(x)),
        fill=_fill_ordered_dict,
    ),
    defaultdict: _DICT._replace(make=_make_defaultdict),
    dict: _DICT,
    list: _Payload(
        values=lambda x: list(list.__iter__(x)),
        steps=lambda x: indexed(list.__len__(x)),
        make=lambda x, values: list.__new__(type(x)),
        fill=lambda x, twin, values: list.extend(twin, values),
    ),
    tuple: _Payload(
        values=lambda x: list(tuple.__iter__(x)),
        steps=_of_tuple,
        make=lambda x, values: tuple.__new__(type(x), values),
        fill=nothing_to_fill,
        immutable=True,
    ),
    set: _Payload(
        values=lambda x: list(set.__iter__(x)),
        steps=lambda x: listed(set.__len__(x)),
        make=lambda x, values: set.__new__(type(x)),
        fill=lambda x, twin, values: set.update(twin, values),
        looks=True,
    ),
    frozenset: _Payload(
        values=lambda x: list(frozenset.__iter__(x)),
        steps=lambda x: listed(frozenset.__len__(x)),
        make=lambda x, values: frozenset.__new__(type(x), values),
        fill=nothing_to_fill,
        immutable=True,
        looks=True,
    ),
    deque: _Payload(
        values=lambda x: list(deque.__iter__(x)),
        steps=lambda x: indexed(deque.__len__(x)),
        make=_make_deque,
        fill=lambda x, twin, values: deque.extend(twin, values),
    ),
    types.SimpleNamespace: OBJECT._replace(
        make=lambda x, values: types.SimpleNamespace.__new__(type(x))
    ),
    UserDict: OBJECT._replace(transparent="data"),
    UserList: OBJECT._replace(transparent="data"),
    ChainMap: OBJECT,
}


def compose(cls: type, payload: _Payload) -> Container | None:
    """The container for a class with this payload and whatever attributes it has."""
    slots = _slots(cls)
    has_dict = _has_dict(cls)
    if cls.__dictoffset__ != 0 and not has_dict:
        return None  # attributes that cannot be reached cannot be kept
    if payload is OBJECT and not (_is_plain(cls) and (slots or has_dict)):
        return None  # its state is out of reach: it lives in C
    if not slots and not has_dict:
        return Container(*payload[:6], kind=_kind(cls, payload))
    # The value of a cached property was computed from what now changes; the twin computes it anew.
    cached = {
        n for base in cls.__mro__ for n, v in vars(base).items() if isinstance(v, cached_property)
    }

    def attributes(x: Any) -> dict[str, Any]:
        found = _attributes(x, slots, has_dict)
        return {name: v for name, v in found.items() if name not in cached} if cached else found

    def children(x: Any) -> list[Any]:
        return payload.values(x) + list(attributes(x).values())

    def steps(x: Any) -> list[Step]:
        return payload.steps(x) + [
            Step(NO_KEY, "") if name == payload.transparent else attribute_step(cls, name)
            for name in attributes(x)
        ]

    def make(x: Any, values: list[Any]) -> Any:
        return payload.make(x, values[: len(values) - len(attributes(x))])

    def fill(x: Any, twin: Any, values: list[Any]) -> None:
        names = attributes(x)
        start = len(values) - len(names)
        payload.fill(x, twin, values[:start])
        _set_attributes(twin, slots, dict(zip(names, values[start:], strict=True)))

    is_record = payload is OBJECT and not slots and not cached
    kind = "record" if is_record else _kind(cls, payload)
    return Container(children, steps, make, fill, payload.immutable, payload.looks, kind)


def _kind(cls: type, payload: _Payload) -> Literal["dict", "list", "tuple", "namedtuple", "other"]:
    if cls in (dict, OrderedDict, defaultdict):
        return "dict"
    if cls is list:
        return "list"
    if cls is tuple:
        return "tuple"
    if (
        payload is PAYLOADS[tuple]
        and class_attribute(cls, "_fields") is not None
        and cls.__dictoffset__ == 0
    ):
        return "namedtuple"
    return "other"


def _is_plain(cls: type) -> bool:
    """Whether `object.__new__` can make an instance: all bases but object are written in Python."""
    heap_type = 1 << 9  # Py_TPFLAGS_HEAPTYPE
    return all(base.__flags__ & heap_type or base is object for base in cls.__mro__)


def _slots(cls: type) -> dict[str, Any]:
    """The slots of a class and its bases: their names (private ones mangled) and descriptors."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        if "__slots__" in vars(base)
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    }


def _attributes(x: Any, slots: dict[str, Any], has_dict: bool) -> dict[str, Any]:
    found = {}
    for name, slot in slots.items():
        try:
            found[name] = slot.__get__(x)
        except AttributeError:  # the slot is empty
            continue
    return found | _vars(x) if has_dict else found


def attributes_of(x: Any) -> dict[str, Any]:
    """What is in the slots and in the `__dict__` of an object."""
    return _attributes(x, _slots(type(x)), _has_dict(type(x)))


def _has_dict(cls: type) -> bool:
    """Whether its objects have a `__dict__`, and not something else under this name."""
    own = next((vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base)), None)
    return isinstance(own, types.GetSetDescriptorType | types.MemberDescriptorType)


def _vars(x: Any) -> dict[str, Any]:
    """The `__dict__` of an object, whatever its class does to reading attributes."""
    found: dict[str, Any] = object.__getattribute__(x, "__dict__")
    return found


def _set_attributes(x: Any, slots: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name in slots:
            slots[name].__set__(x, value)
        else:
            _vars(x)[name] = value


def set_attributes(x: Any, values: dict[str, Any]) -> None:
    """Put these values into the slots and the `__dict__` of an object, past its `__setattr__`."""
    _set_attributes(x, _slots(type(x)), values)


# `batch_sizes` stays on the CPU, where the kernels of torch read it: it is no child.
# https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.PackedSequence.html
PACKED_SEQUENCE = Container(
    children=lambda x: [x.data, x.sorted_indices, x.unsorted_indices],
    steps=lambda x: [Step(n, f".{n}") for n in ("data", "sorted_indices", "unsorted_indices")],
    make=lambda x, values: tuple.__new__(type(x), (values[0], x.batch_sizes, *values[1:])),
    fill=nothing_to_fill,
    immutable=True,
)


def _copied(x: types.MappingProxyType[Any, Any]) -> Mapping[Any, Any]:
    try:
        return x.copy()
    except AttributeError:  # it asks its mapping, and not every mapping has this method
        return dict(x)


# The mapping behind a proxy is out of reach; its copy has the same type.
MAPPING_PROXY = Container(
    children=lambda x: [_copied(x)],
    steps=lambda x: [Step(NO_KEY, "")],
    make=lambda x, values: types.MappingProxyType(values[0]),
    fill=nothing_to_fill,
    immutable=True,
)

# What torch.max(x, dim=0) and its like return.
STRUCT_SEQUENCE = Container(
    children=lambda x: list(tuple.__iter__(x)),
    steps=lambda x: indexed(tuple.__len__(x)),
    make=lambda x, values: type(x)(values),
    fill=nothing_to_fill,
    immutable=True,
)


def _make_mapping(x: Any, values: list[Any]) -> Any:
    items = dict(zip(x.keys(), values, strict=True))
    if not isinstance(x, MutableMapping):
        return type(x)(items)
    twin = copy(x)
    twin.update(items)
    return twin


# A mapping written in C: nothing but its own methods reaches its state.
ANY_MAPPING = Container(
    children=lambda x: list(x.values()),
    steps=lambda x: keyed(x.keys()),
    make=_make_mapping,
    fill=nothing_to_fill,
    immutable=True,
    looks=True,
)
