"""The steps of a path: the Python text that leads from a container to a child."""

from __future__ import annotations

import keyword
import math
import types
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["NO_KEY", "Step", "attribute_step", "indexed", "is_name", "keyed", "listed"]


NO_KEY = object()


class Step(NamedTuple):
    """The way from a container to a child: `before + path of the container + after`.

    `key` is the mapping's key or the attribute's name; `NO_KEY` where there is none, as in a list.
    """

    key: object
    after: str
    before: str = ""


def indexed(count: int) -> list[Step]:
    """The ways to the items of a sequence."""
    return [Step(NO_KEY, f"[{i}]") for i in range(count)]


def listed(count: int) -> list[Step]:
    """The ways to the elements of what cannot be indexed."""
    return [Step(NO_KEY, f")[{i}]", "list(") for i in range(count)]


def keyed(keys: Iterable[Any]) -> list[Step]:
    """The ways to the values of a mapping."""
    return [
        Step(key, f"[{key!r}]") if _is_literal(key) else Step(key, f".values())[{i}]", "list(")
        for i, key in enumerate(keys)
    ]


def _is_literal(key: object, depth: int = 0) -> bool:
    """Whether the text of `repr` is a Python expression for this key."""
    if type(key) is tuple:
        # Python reads no expression with two hundred brackets inside each other.
        return depth < 20 and all(_is_literal(each, depth + 1) for each in key)
    if type(key) is float:
        return math.isfinite(key)
    if type(key) is int:
        return key.bit_length() < 1000  # Python writes no number of some thousand digits
    return type(key) in (str, bool, bytes, type(None))


def attribute_step(cls: type, name: str) -> Step:
    """The way from an object to what is under this name in its slots or its `__dict__`."""
    if is_name(name) and not _is_shadowed(cls, name):
        return Step(name, f".{name}")
    return Step(name, f".__dict__[{name!r}]")


def is_name(text: object) -> bool:
    """Whether it can stand after a dot in a Python expression, and means itself there.

    Python takes some letters for others: it reads the attribute `ﬁ` as `fi`.
    """
    return (
        type(text) is str
        and text.isidentifier()
        and not keyword.iskeyword(text)
        and unicodedata.is_normalized("NFKC", text)
    )


def _is_shadowed(cls: type, name: str) -> bool:
    """Whether the class decides what is read under this name, and not the object."""
    own = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    if isinstance(own, types.MemberDescriptorType):
        return False  # a slot: what is in it is what is read
    return hasattr(type(own), "__set__") or hasattr(type(own), "__delete__")
