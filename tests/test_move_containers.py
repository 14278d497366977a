"""The sixty kinds of containers and leaves that movers meet, each with its right outcome.

The rows follow a comparison of fourteen movers, of which the best gets 41 right. Those that need
other packages (attrs, tensordict, torch_geometric) are in `ecosystem/test_real_types.py`.
"""

import enum
import types
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    defaultdict,
    deque,
    namedtuple,
)
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from devicekit import to_device
from devicekit.testing import Simulation


class Constructors:
    """Whether constructors may run: only while a case is built."""

    allowed = True


def constructed() -> None:
    assert Constructors.allowed, "a constructor ran while moving"


Point = namedtuple("Point", "x y")
Single = namedtuple("Single", "x")


class Defaulted(NamedTuple):
    x: Tensor
    scale: float = 2.0


class Narrow(Point):
    """A namedtuple whose `__new__` takes fewer arguments (R012)."""

    __slots__ = ()

    def __new__(cls, x: Any) -> "Narrow":
        constructed()
        return super().__new__(cls, x, 0)


class FrozenMapping(Mapping[str, Any]):
    def __init__(self, values: dict[str, Any], /) -> None:
        constructed()
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class LabelledList(list[Any]):
    label = ""


class NeedyList(list[Any]):
    def __init__(self, values: list[Any], label: str) -> None:
        constructed()
        super().__init__(values)
        self.label = label


class LabelledDict(dict[str, Any]):
    label = ""


class NeedyDict(dict[str, Any]):
    def __init__(self, values: dict[str, Any], label: str) -> None:
        constructed()
        super().__init__(values)
        self.label = label

    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("the class's own way to set items was used")


class NeedyTuple(tuple[Any, ...]):
    label: str

    def __new__(cls, values: list[Any], label: str) -> "NeedyTuple":
        constructed()
        made = super().__new__(cls, values)
        made.label = label
        return made


@dataclass
class Plain:
    x: Tensor
    n: int = 3
    kind: ClassVar[str] = "plain"

    def __post_init__(self) -> None:
        constructed()


@dataclass(slots=True)
class Slotted:
    x: Tensor
    n: int = 3

    def __post_init__(self) -> None:
        constructed()


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    n: int = 3

    def __post_init__(self) -> None:
        constructed()


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    x: Tensor
    n: int = 3


@dataclass
class WithInitVar:
    x: Tensor
    scale: InitVar[float]
    scaled: Tensor = field(init=False)

    def __post_init__(self, scale: float) -> None:
        constructed()
        self.scaled = self.x * scale


@dataclass
class Computed:
    """R003: a field that the constructor does not take."""

    x: Tensor
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        constructed()
        self.y = self.x + 1


@dataclass(frozen=True)
class FrozenComputed:
    x: Tensor
    y: Tensor = field(init=False)

    def __post_init__(self) -> None:
        constructed()
        object.__setattr__(self, "y", self.x + 1)


@dataclass
class WithCachedProperty:
    x: Tensor

    @cached_property
    def double(self) -> Tensor:
        return self.x * 2

    @cached_property
    def device(self) -> torch.device:
        return self.x.device


class Mover:
    def __init__(self, x: Tensor) -> None:
        constructed()
        self.x = x

    def to(self, device: torch.device) -> "Mover":
        moved = Mover.__new__(Mover)
        moved.x = self.x.to(device)
        return moved


class Quantity:
    """Its `to` has nothing to do with devices."""

    def __init__(self, value: float) -> None:
        self.value = value

    def to(self, unit: str) -> "Quantity":
        raise ValueError(f"no such unit: {unit}")


class Interval:
    """Its `to` is no method."""

    def __init__(self) -> None:
        self.to = 7


class Encoding(UserDict[str, Any]):
    """Like the batches of transformers: its `to` moves in place, and only the top level (R005)."""

    def __init__(self, data: dict[str, Any], encodings: list[str]) -> None:
        constructed()
        super().__init__(data)
        self.encodings = encodings

    def to(self, device: torch.device) -> "Encoding":
        self.data = {k: v.to(device) if torch.is_tensor(v) else v for k, v in self.data.items()}
        return self


class Color(enum.Enum):
    RED = 1


class Shape(tuple[int, int], enum.Enum):
    SQUARE = (2, 2)


def t(value: float = 1.0, size: int = 2) -> Tensor:
    return torch.full((size,), value)


def with_attribute(x: Any, **attributes: Any) -> Any:
    vars(x).update(attributes)
    return x


class Case(NamedTuple):
    """How to make the data, its tensors, and what else must stay as it was."""

    name: str
    make: Callable[[], Any]
    tensors: Callable[[Any], list[Tensor]] = lambda x: list(x)
    rest: Callable[[Any], Any] = lambda x: None


def cached(x: WithCachedProperty) -> WithCachedProperty:
    x.double, x.device  # noqa: B018
    return x


CASES = [
    Case("list", lambda: [t(), t(2)]),
    Case("dict", lambda: {"b": t(), "a": t(2)}, lambda x: list(x.values()), list),
    Case("tuple", lambda: (t(), t(2))),
    Case("namedtuple", lambda: Point(t(), "label"), lambda x: [x.x], lambda x: x.y),
    Case("namedtuple, default", lambda: Defaulted(t()), lambda x: [x.x], lambda x: x.scale),
    Case("namedtuple, 1 field", lambda: Single(t()), lambda x: [x.x]),
    Case("R012 namedtuple, own __new__", lambda: Narrow(t()), lambda x: [x.x], lambda x: x.y),
    Case(
        "OrderedDict",
        lambda: OrderedDict(b=t(), a=t(2), c=3),
        lambda x: [x["b"], x["a"]],
        lambda x: (list(x), x["c"]),
    ),
    Case(
        "R001 defaultdict",
        lambda: defaultdict(list, b=t(), a=t(2)),
        lambda x: list(x.values()),
        lambda x: (x.default_factory, list(x)),
    ),
    Case("UserDict", lambda: UserDict(b=t(), a=t(2)), lambda x: list(x.values()), list),
    Case(
        "MappingProxyType",
        lambda: types.MappingProxyType({"b": t(), "a": 3}),
        lambda x: [x["b"]],
        lambda x: (list(x), x["a"]),
    ),
    Case("frozen Mapping", lambda: FrozenMapping({"b": t()}), lambda x: [x["b"]], list),
    Case(
        "ChainMap",
        lambda: ChainMap({"a": t()}, {"a": t(2), "b": t(3)}),
        lambda x: [m[k] for m in x.maps for k in m],
        lambda x: [list(m) for m in x.maps],
    ),
    Case(
        "SimpleNamespace",
        lambda: types.SimpleNamespace(x=t(), n=3),
        lambda x: [x.x],
        lambda x: (list(vars(x)), x.n),
    ),
    Case(
        "list subclass, attribute",
        lambda: with_attribute(LabelledList([t()]), label="a", mask=t(3)),
        lambda x: [*x, x.mask],
        lambda x: x.label,
    ),
    Case("list subclass, argument", lambda: NeedyList([t()], "a"), list, lambda x: x.label),
    Case(
        "dict subclass, attribute",
        lambda: with_attribute(LabelledDict(b=t(), a=t(2)), label="a"),
        lambda x: list(x.values()),
        lambda x: (x.label, list(x)),
    ),
    Case(
        "dict subclass, argument",
        lambda: NeedyDict({"b": t()}, "a"),
        lambda x: list(x.values()),
        lambda x: (x.label, list(x)),
    ),
    Case("tuple subclass, 2 arguments", lambda: NeedyTuple([t()], "a"), list, lambda x: x.label),
    Case("UserList", lambda: UserList([t(), t(2)])),
    Case("deque", lambda: deque([t(), t(2)], maxlen=5), list, lambda x: x.maxlen),
    Case("set", lambda: {t(), "a"}, lambda x: [v for v in x if v != "a"], lambda x: "a" in x),
    Case("frozenset", lambda: frozenset({t()})),
    Case("dataclass", lambda: Plain(t()), lambda x: [x.x], lambda x: (x.n, x.kind)),
    Case(
        "dataclass, attribute that is no field",
        lambda: with_attribute(Plain(t()), later=t(3), note="a"),
        lambda x: [x.x, x.later],
        lambda x: x.note,
    ),
    Case("dataclass, slots", lambda: Slotted(t()), lambda x: [x.x], lambda x: x.n),
    Case("dataclass, frozen", lambda: Frozen(t()), lambda x: [x.x], lambda x: x.n),
    Case("dataclass, frozen, slots", lambda: FrozenSlotted(t()), lambda x: [x.x], lambda x: x.n),
    Case("dataclass, InitVar", lambda: WithInitVar(t(), 3.0), lambda x: [x.x, x.scaled]),
    Case("R003 dataclass, init=False", lambda: Computed(t()), lambda x: [x.x, x.y]),
    Case("dataclass, frozen, init=False", lambda: FrozenComputed(t()), lambda x: [x.x, x.y]),
    Case("cached_property, used", lambda: cached(WithCachedProperty(t())), lambda x: [x.x]),
    Case("object with .to", lambda: Mover(t()), lambda x: [x.x]),
    Case(
        "R005 UserDict with .to in place",
        lambda: Encoding({"ids": t(), "nested": {"k": [t(2)]}}, ["e"]),
        lambda x: [x["ids"], x["nested"]["k"][0]],
        lambda x: (list(x), x.encodings),
    ),
    Case("Parameter", lambda: [nn.Parameter(t())]),
    Case("Parameter without grad", lambda: [nn.Parameter(t(), requires_grad=False)]),
    Case("struct sequence", lambda: torch.max(torch.ones(2, 2), dim=0), list),
    Case("Counter", lambda: Counter({"a": t()}), lambda x: list(x.values()), list),
]

PASSED_THROUGH = [
    *(3, 2.5, 1j, True, None, "text", b"raw", bytearray(b"x"), range(3), Color.RED, Shape.SQUARE),
    *(slice(1, 2), torch.Size([2, 3]), torch.float32, torch.device("cpu"), len, Plain, ...),
    *(np.ones(3), np.float32(2), np.array(["a"]), Counter("abc"), Quantity(2.0), Interval()),
    *(memoryview(b"abc"), iter([1]), object(), [], {}, (), deque(), set(), Point(1, 2)),
    *(["a", "b"], {"names": ["1", "2"], "n": None}, torch.distributions.Normal(0.0, 1.0)),
]


@pytest.fixture(params=["meta", "sim"])
def target(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "meta":
        return torch.device("meta")
    running: Simulation = request.getfixturevalue("simulated_accelerator")
    return running.devices[1]


@pytest.fixture(autouse=True)
def _no_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Constructors, "allowed", True)


def build(case: Case) -> Any:
    Constructors.allowed = True
    made = case.make()
    Constructors.allowed = False
    return made


def assert_values(moved: Tensor, original: Tensor) -> None:
    assert (moved.dtype, moved.shape) == (original.dtype, original.shape)
    assert moved.layout is original.layout
    assert moved.requires_grad == original.requires_grad
    if not moved.is_meta:
        back, here = moved.detach().cpu(), original.detach()
        if here.layout is not torch.strided:
            back, here = back.to_dense(), here.to_dense()
        assert torch.equal(back, here)


@pytest.mark.parametrize("nested", [False, True], ids=["bare", "nested"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, nested: bool, target: torch.device) -> None:
    data = build(case)
    before, rest = case.tensors(data), case.rest(data)

    moved = to_device({"in": [data]}, target)["in"][0] if nested else to_device(data, target)

    assert type(moved) is type(data)
    assert moved is not data
    tensors = case.tensors(moved)
    assert len(tensors) == len(before)
    for new, old in zip(tensors, before, strict=True):
        assert new.device == target
        assert type(new) is type(old)
        assert_values(new, old)
    assert case.rest(moved) == rest
    # The caller's object is as it was, down to the identity of the tensors.
    assert all(a is b for a, b in zip(case.tensors(data), before, strict=True))
    assert all(tensor.device.type == "cpu" for tensor in before)
    assert case.rest(data) == rest


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_when_it_is_there_already(case: Case) -> None:
    data = build(case)

    assert to_device(data, "cpu") is data
    assert to_device([data], "cpu:0")[0] is data
    assert to_device({"x": data}, "cpu", strict=True)["x"] is data


@pytest.mark.parametrize("x", PASSED_THROUGH, ids=lambda x: f"{type(x).__name__} {x!r:.12}")
def test_passed_through(x: Any, target: torch.device) -> None:
    """R010 (strings), R011 (None and numbers), R013 (lists of strings)."""
    assert to_device(x, target) is x
    moved = to_device([x, t()], target)
    assert moved[0] is x
    assert moved[1].device == target


def test_R007_packed_sequence(target: torch.device) -> None:
    packed = pack_sequence([t(1, 2), t(2, 3)], enforce_sorted=False)

    for moved in (to_device(packed, target), to_device([packed], target)[0]):
        assert type(moved) is type(packed)
        assert moved.batch_sizes is packed.batch_sizes
        for name in ("data", "sorted_indices", "unsorted_indices"):
            assert getattr(moved, name).device == target
            assert_values(getattr(moved, name), getattr(packed, name))
    assert packed.data.device.type == "cpu"


def test_packed_sequence_without_indices() -> None:
    moved = to_device(pack_sequence([t(1, 3), t(2, 2)]), "meta")

    assert moved.data.is_meta
    assert moved.sorted_indices is None


@pytest.mark.parametrize("nested", [False, True])
def test_sparse(nested: bool, simulated_accelerator: Simulation) -> None:
    sparse = t().to_sparse()
    for target in (torch.device("meta"), simulated_accelerator.devices[0]):
        moved = to_device([sparse] if nested else sparse, target)
        moved = moved[0] if nested else moved
        assert (moved.device, moved.layout) == (target, torch.sparse_coo)
        assert_values(moved, sparse)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_csr() -> None:
    moved = to_device([torch.eye(3).to_sparse_csr()], "meta")[0]

    assert (moved.device.type, moved.layout) == ("meta", torch.sparse_csr)


def test_jagged_nested_tensor() -> None:
    nested = torch.nested.nested_tensor([t(1, 2), t(2, 3)], layout=torch.jagged)

    moved = to_device([nested], "meta")[0]

    assert moved.is_nested
    assert moved.device.type == "meta"


@pytest.mark.filterwarnings("ignore:.*quantiz.*")
def test_quantized_tensor() -> None:
    """It stays where it is at home; a device that has none refuses it, and the note says which."""
    by_tensor = torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8)
    by_channel = torch.quantize_per_channel(
        torch.ones(2, 2), torch.full((2,), 0.5), torch.zeros(2), 0, torch.quint8
    )
    for quantized in (by_tensor, by_channel):
        data = {"x": t(), "weights": [quantized]}
        assert to_device(data, "cpu", dtype=torch.float16)["weights"][0] is quantized
        with pytest.raises(NotImplementedError) as caught:
            to_device(data, "meta")
        assert "data['weights'][0]" in "".join(caught.value.__notes__)
        assert data["x"].device.type == "cpu"
        assert data["weights"][0] is quantized


def test_cached_property_is_computed_anew(target: torch.device) -> None:
    """A cached value was computed from what has moved: here, a device."""
    data = cached(WithCachedProperty(t()))

    moved = to_device(data, target)

    assert moved.device == target
    assert moved.double.device == target
    assert data.device == torch.device("cpu")
    assert "double" in vars(data)


def test_module_moves_in_place(target: torch.device) -> None:
    for module in (nn.Linear(2, 2), nn.ModuleDict({"a": nn.Linear(2, 2)})):
        assert to_device(module, target) is module
        assert all(p.device == target for p in module.parameters())
    inner = nn.Linear(2, 2)
    assert to_device([inner], target)[0] is inner
    assert inner.weight.device == target


def test_a_mapping_written_in_c() -> None:
    """It has neither `__dict__` nor slots: only its own methods reach its state."""

    class Opaque(Mapping[str, Any]):
        __slots__ = ()

        def __getitem__(self, key: str) -> Any:
            return {"a": shared}[key]

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    shared = t()
    with pytest.raises(TypeError) as caught:  # its constructor takes no mapping, and that is said
        to_device({"x": Opaque()}, "meta")
    assert "data['x']" in "".join(caught.value.__notes__)
