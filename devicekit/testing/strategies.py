"""Nested data for property tests: every container that the walker knows, shared parts included."""

from __future__ import annotations

import enum
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    from hypothesis import strategies as st
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "`devicekit.testing.batches` needs hypothesis: pip install hypothesis", name="hypothesis"
    ) from error

__all__ = ["batches", "grow"]

Choose = Callable[[int], int]  # choose(n): an int from 0 to n - 1


class Pair(NamedTuple):
    """A namedtuple with a default."""

    first: Any
    second: Any = None


@dataclass
class Record:
    """A dataclass with a field that its constructor does not take."""

    first: Any
    second: Any
    extra: Any = field(init=False, default=None)


@dataclass(frozen=True, eq=False)
class FrozenRecord:
    """A frozen dataclass; hashable by identity."""

    first: Any
    second: Any


@dataclass(slots=True)
class SlottedRecord:
    """A dataclass without a `__dict__`."""

    first: Any
    second: Any


class Bag(list[Any]):
    """A list with a required argument and an attribute."""

    def __init__(self, values: list[Any], label: Any) -> None:
        super().__init__(values)
        self.label = label


class Table(dict[Any, Any]):
    """A dict with a required argument and an attribute."""

    def __init__(self, values: dict[Any, Any], label: Any) -> None:
        super().__init__(values)
        self.label = label


class View(Mapping[Any, Any]):
    """A mapping that cannot be changed."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self._values = values

    def __getitem__(self, key: Any) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Color(enum.Enum):
    """An enum, whose members must stay themselves."""

    RED = 1


_KEYS: tuple[Hashable, ...] = ("a", "b", "c d", 0, 1, None, (1, "x"), Color.RED, "e'", 2.5)
_CONSTANTS: tuple[object, ...] = (
    *(None, True, 3, -1, 2.5, 1j, "text", "", b"raw", range(3), Color.RED),
    *(torch.float32, torch.device("cpu"), torch.Size([2, 3]), slice(1, 2), len),
)
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.float16, torch.complex64)
_SHAPES = ((), (1,), (3,), (2, 3), (0,))


def _named(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(_KEYS, values, strict=False))


def _two(values: list[Any]) -> tuple[Any, Any]:
    return (*values, None, None)[0], (*values, None, None)[1]


def _hashable(values: list[Any]) -> list[Any]:
    return [v for v in values if isinstance(v, Tensor | FrozenRecord | str | int | None)]


_CONTAINERS: tuple[Callable[[list[Any]], Any], ...] = (
    list,
    tuple,
    _named,
    lambda v: OrderedDict(_named(v)),
    lambda v: defaultdict(list, _named(v)),
    lambda v: deque(v, maxlen=9),
    lambda v: UserDict(_named(v)),
    UserList,
    lambda v: ChainMap(_named(v[:2]), _named(v[2:])),
    lambda v: MappingProxyType(_named(v)),
    lambda v: SimpleNamespace(**{f"n{i}": x for i, x in enumerate(v)}),
    lambda v: Pair(*_two(v)),
    lambda v: Record(*_two(v)),
    lambda v: FrozenRecord(*_two(v)),
    lambda v: SlottedRecord(*_two(v)),
    lambda v: Bag(v[1:], label=v[0] if v else None),
    lambda v: Table(_named(v[1:]), label=v[0] if v else None),
    lambda v: View(_named(v)),
    lambda v: set(_hashable(v)),
    lambda v: frozenset(_hashable(v)),
)


def _tensor(choose: Choose) -> Tensor:
    shape = _SHAPES[choose(len(_SHAPES))]
    dtype = _DTYPES[choose(len(_DTYPES))]
    return torch.full(shape, choose(7), dtype=dtype)


def grow(choose: Choose, *, cycles: bool = False) -> Any:
    """Build nested data from choices: `choose(n)` gives an int from 0 to n - 1.

    `batches` lets hypothesis choose; a `random.Random` can too, which is a hundred times faster.
    """
    parts: list[Any] = [_tensor(choose) for _ in range(1 + choose(3))]
    parts += [_CONSTANTS[choose(len(_CONSTANTS))] for _ in range(choose(3))]
    for _ in range(1 + choose(7)):
        # Parts are taken from all that is there, so some are used twice and some not at all.
        values = [parts[choose(len(parts))] for _ in range(choose(4))]
        parts.append(_CONTAINERS[choose(len(_CONTAINERS))](values))
    root = [parts[-1], parts[choose(len(parts))]]
    if cycles and choose(2):
        _tie(parts[choose(len(parts))], root)
    return root[0] if choose(2) else root


def _tie(part: Any, root: Any) -> None:
    """Put the root into a part of it."""
    if isinstance(part, list | deque | UserList):
        part.append(root)
    elif isinstance(part, dict | UserDict):
        part["root"] = root
    elif isinstance(part, Record | SlottedRecord):
        part.second = root


@st.composite
def batches(draw: st.DrawFn, *, cycles: bool = False) -> Any:
    """Nested data: tensors of several dtypes in containers of every kind, some parts used twice.

    Args:
        draw: Given by hypothesis.
        cycles: Whether some of the data contain themselves.

    Example:
        >>> from hypothesis import given
        >>> from devicekit import to_device
        >>> from devicekit.testing import assert_same, batches
        >>> @given(batches())
        ... def test_keeps_everything(batch):
        ...     assert_same(to_device(batch, "meta"), batch)
        >>> test_keeps_everything()
    """

    def choose(n: int) -> int:
        return draw(st.integers(0, n - 1))

    return grow(choose, cycles=cycles)
