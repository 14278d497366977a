"""What to_device promises, whatever the data are made of."""

import copy
import functools
import gc
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from devicekit import (
    Device,
    DeviceSpecError,
    DeviceUnavailableError,
    MoveError,
    find_tensors,
    to_device,
)
from devicekit.testing import Simulation, assert_on, assert_same, batches, simulate
from devicekit.tree import map_tensors

META = torch.device("meta")


@dataclass
class Record:
    x: Any
    y: Any = None


@dataclass(frozen=True)
class Frozen:
    x: Any


@dataclass
class Pair:
    """A record whose two fields are one object."""

    x: Any

    def __post_init__(self) -> None:
        self.y = self.x

    def __getitem__(self, i: int) -> Any:
        return (self.x, self.y)[i]


def t(value: float = 1.0) -> Tensor:
    return torch.full((2,), value)


# Identity -----------------------------------------------------------------------------------------


def test_the_same_object_where_nothing_moved_at_each_level() -> None:
    there = {"a": [torch.ones(2, device="meta")], "b": (1, "x")}
    data = {"there": there, "here": [t()], "names": ["a"]}

    moved = to_device(data, "meta")

    assert moved is not data
    assert moved["there"] is there
    assert moved["names"] is data["names"]
    assert moved["here"] is not data["here"]


@pytest.mark.parametrize("wrap", [lambda x: x, UserDict], ids=["quick way", "walker"])
def test_one_tensor_referenced_twice_is_moved_once(wrap: Callable[[Any], Any]) -> None:
    """R015."""
    x = t()
    count = 0

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal count
            count += func is Tensor.to
            return func(*args, **(kwargs or {}))

    data = wrap({"a": x, "b": [x, (x, Record(x))], "c": t()})
    with Counting():
        moved = to_device(data, "meta")

    assert count == 2
    assert moved["a"] is moved["b"][0] is moved["b"][1][0] is moved["b"][1][1].x
    assert moved["c"] is not moved["a"]


@pytest.mark.parametrize("wrap", [lambda x: x, UserDict], ids=["quick way", "walker"])
def test_two_names_for_one_container_stay_two_names_for_one(wrap: Callable[[Any], Any]) -> None:
    shared = [t()]
    record = Record(shared, (shared,))

    moved = to_device(wrap({"a": shared, "b": (shared, shared), "c": record, "d": record}), "meta")

    assert moved["a"] is moved["b"][0] is moved["b"][1] is moved["c"].x is moved["c"].y[0]
    assert moved["c"] is moved["d"]
    assert moved["a"] is not shared


class Refusing:
    """An object that answers nothing."""

    def refuse(self, *args: Any) -> Any:
        raise LookupError("no")

    __iter__ = __eq__ = __hash__ = __bool__ = __repr__ = __len__ = refuse


@pytest.mark.parametrize("option", ["skip", "dtype", "non_blocking"])
@pytest.mark.parametrize(
    "value", [10**5000, Refusing(), [Refusing()], torch.tensor(1)], ids=lambda x: type(x).__name__
)
def test_options_that_cannot_be_read(option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"`{option}` must be"):
        to_device({"x": t()}, "meta", **{option: value})


def test_deep_data_with_skip_and_strict_take_linear_time() -> None:
    data: Any = {"x": t(), "y": t()}
    for _ in range(10_000):
        data = [data]

    moved = to_device(data, "meta", skip=("x",), strict=True)

    while isinstance(moved, list):
        moved = moved[0]
    assert moved["x"].is_cpu
    assert moved["y"].is_meta


def test_types_made_on_the_fly_die() -> None:
    dying = []
    for _ in range(1200):
        cls = dataclass(type("Made", (), {"__annotations__": {"x": Any}}))
        to_device([cls(t()), type("Foreign", (), {})()], "meta")
        dying.append(weakref.ref(cls))
    del cls
    gc.collect()

    assert sum(ref() is not None for ref in dying) <= 1000


def test_cycles() -> None:
    data: dict[str, Any] = {"x": t(), "list": [], "record": Record(None)}
    data["self"] = data
    data["list"] += [data, data["list"], (data["list"],)]
    data["record"].x = data["record"]

    moved = to_device(data, "meta")

    assert moved is not data
    assert moved["self"] is moved
    assert moved["list"][0] is moved
    assert moved["list"][1] is moved["list"]
    assert moved["list"][2][0] is moved["list"]
    assert moved["record"] is data["record"]  # nothing in it moved
    assert data["self"] is data
    assert to_device(data, "cpu") is data


def test_a_cycle_that_looks_unchanged_until_its_end() -> None:
    """The inner list is left before the tensor behind it is met."""
    outer: list[Any] = []
    inner = [outer]
    outer += [inner, t()]

    moved = to_device(outer, "meta")

    assert moved[0] is not inner
    assert moved[0][0] is moved
    assert moved[1].is_meta


def test_cycles_through_immutable_containers() -> None:
    Point = namedtuple("Point", "x y")
    a: list[Any] = []
    point = Point(a, t())
    a.append((frozenset([Frozen(1)]), point))
    frozen = Frozen({})
    frozen.x["me"] = MappingProxyType({"frozen": frozen, "x": t()})

    moved = to_device([point, frozen], "meta")

    assert moved[0].x[0][1] is moved[0]
    assert moved[0].y.is_meta
    assert moved[1].x["me"]["frozen"] is moved[1]
    assert moved[1].x["me"]["x"].is_meta


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: (x,), lambda x: {"k": x}, Record])
@pytest.mark.parametrize("depth", [100, 10_000])
def test_deep(make: Callable[[Any], Any], depth: int) -> None:
    inner = {"x": t()}
    data: Any = inner
    for _ in range(depth):
        data = make(data)

    moved = to_device(data, "meta")

    for _ in range(depth):
        moved = (
            moved.x if isinstance(moved, Record) else moved["k" if isinstance(moved, dict) else 0]
        )
    assert moved["x"].is_meta
    assert inner["x"].is_cpu


@pytest.mark.parametrize(
    "make", [lambda x: (x, x), lambda x: {0: x, 1: x}, Pair], ids=["sequence", "dict", "record"]
)
def test_one_tensor_twice_in_one_container(make: Callable[[Any], Any]) -> None:
    data = make(t())
    moved = to_device(data, "meta")
    assert type(moved) is type(data)
    assert moved[0] is moved[1]


@pytest.mark.parametrize("make", [list, tuple, lambda x: dict(enumerate(x))])
@pytest.mark.parametrize(
    "arrange",
    [
        lambda a, b: [a, b],
        lambda a, b: [a, a, b],
        lambda a, b: [a, [b], a],
        lambda a, b: [a, [a], b],
        lambda a, b: [[a], a, b],
        lambda a, b: [a, [b], b],
        lambda a, b: [a, [[b], a], b],
    ],
)
def test_one_tensor_twice_wherever_a_container_begins(
    make: Callable[[Any], Any], arrange: Callable[[Tensor, Tensor], list[Any]]
) -> None:
    """The outermost container needs no memo until another one is met in it."""
    there = torch.ones(2, device="meta")
    data = make([there, 1, *arrange(t(), t()), 1, there, "x"])

    moved = to_device(data, "meta")

    pairs = list(zip(find_tensors(data), find_tensors(moved), strict=True))
    became = {id(x): y for (_, x), (_, y) in pairs}
    assert all(became[id(x)] is y and y.is_meta for (_, x), (_, y) in pairs)
    assert len({id(y) for y in became.values()}) == 3
    assert became[id(there)] is there


@pytest.mark.parametrize("leaf", [t(), 1], ids=["tensor", "int"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "make", [lambda x: [x, x], lambda x: {0: x, 1: x}, Pair], ids=["sequence", "dict", "record"]
)
def test_shared_parts_in_shared_parts_take_linear_time(
    make: Callable[[Any], Any], leaf: Any, device: str
) -> None:
    data: Any = [leaf]
    for _ in range(200):
        data = make(data)

    moved = to_device(data, device)

    assert moved[0] is moved[1]
    assert (moved is data) == (device == "cpu" or not torch.is_tensor(leaf))


def test_nothing_is_kept_alive() -> None:
    """Neither results nor sources wait for the collector of cycles, which knows no GPU memory."""
    gc.disable()
    try:
        for make in (dict, UserDict):
            data = make(x=[t()])
            source = weakref.ref(next(find_tensors(data))[1])
            moved = to_device(data, "meta")
            result = weakref.ref(next(find_tensors(moved))[1])
            del data, moved
            assert source() is None
            assert result() is None
    finally:
        gc.enable()


# Devices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device", ["cpu", "cpu:0", torch.device("cpu"), torch.device("cpu:0"), Device("cpu")]
)
def test_every_name_of_the_cpu_is_the_cpu(device: Any) -> None:
    data = {"x": t()}
    assert to_device(data, device) is data
    assert to_device(data["x"], device) is data["x"]


def test_between_accelerators_and_back(simulated_accelerator: Simulation) -> None:
    data = {"x": t(3), "y": [t(4)]}

    first = to_device(data, "sim:0")
    second = to_device(first, torch.device("sim", 1))
    back = to_device(second, "cpu")

    assert_on("sim:0", first)
    assert_on("sim:1", second)
    assert_on("cpu", back)
    assert_same(back, data)
    assert to_device(second, "sim:1") is second
    assert to_device(first, 0) is first


def test_without_an_index_it_is_the_current_device(simulated_accelerator: Simulation) -> None:
    module: Any = torch.get_device_module("sim")
    for index in (1, 0, 1):
        module.set_device(index)
        try:
            assert to_device({"x": t()}, "sim")["x"].device.index == index
        finally:
            module.set_device(0)


def test_a_device_that_is_none() -> None:
    for wrong in ("gpuu", "cuda:-1", 2.5, True, ["cpu"]):
        with pytest.raises(DeviceSpecError):
            to_device({"x": t()}, wrong)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is available")
def test_there_is_no_fallback() -> None:
    with pytest.raises(DeviceUnavailableError):
        to_device({"x": t()}, "cuda:0")


# Parameters, grad, autograd -----------------------------------------------------------------------


def test_R017_parameter_stays_a_leaf_with_its_grad(simulated_accelerator: Simulation) -> None:
    parameter = nn.Parameter(t())
    (parameter * 3).sum().backward()
    parameter.note = "kept"

    moved = to_device({"p": parameter}, "sim:0")["p"]

    assert type(moved) is nn.Parameter
    assert moved.is_leaf
    assert moved.requires_grad
    assert moved.grad.device == moved.device
    assert moved.grad.cpu().tolist() == [3, 3]
    assert moved.note == "kept"
    assert parameter.device.type == parameter.grad.device.type == "cpu"
    torch.optim.SGD([moved], lr=0.1).step()
    assert to_device(moved, "sim:0") is moved


def test_parameter_subclass() -> None:
    class Own(nn.Parameter):
        pass

    moved = to_device([Own(t())], "meta")[0]

    assert type(moved) is Own
    assert moved.is_leaf
    assert moved.requires_grad


def test_plain_tensors_keep_their_history(simulated_accelerator: Simulation) -> None:
    weight = t().requires_grad_()

    moved = to_device({"x": weight * 2}, "sim:0")["x"]
    moved.sum().backward()

    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2]


class Tagged(Tensor):
    """A tensor with an attribute."""

    tag: str


class Bare(Tensor):
    """A tensor whose methods return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("cls", [Tagged, Bare])
def test_tensor_subclass_keeps_type_and_attributes(cls: type[Tensor]) -> None:
    x = t().as_subclass(cls)
    x.tag = "a"  # type: ignore[attr-defined]

    moved = to_device({"x": x}, "meta")["x"]

    assert type(moved) is cls
    assert moved.is_meta
    assert moved.tag == "a"  # type: ignore[attr-defined]


# dtype --------------------------------------------------------------------------------------------


def test_dtype_is_for_floating_point_only() -> None:
    data = {"x": t(), "ids": torch.tensor([1]), "mask": torch.tensor([True]), "z": torch.tensor(1j)}

    moved = to_device(data, "cpu", dtype=torch.bfloat16)

    assert moved["x"].dtype is torch.bfloat16
    assert all(moved[key] is data[key] for key in ("ids", "mask", "z"))
    assert data["x"].dtype is torch.float32
    assert to_device(moved, "cpu", dtype=torch.bfloat16) is moved


def test_dtype_of_modules_and_parameters() -> None:
    module = nn.BatchNorm1d(2)
    module.register_buffer("phase", torch.tensor(1j))
    module.weight.sum().backward()
    weight, parameter = module.weight, nn.Parameter(t())

    moved = to_device([module, parameter], "cpu", dtype=torch.float64)

    assert module.weight is weight
    assert weight.dtype is weight.grad.dtype is module.running_mean.dtype is torch.float64
    assert module.num_batches_tracked.dtype is torch.int64
    assert module.phase.dtype is torch.complex64
    assert (type(moved[1]), moved[1].dtype) == (nn.Parameter, torch.float64)


@pytest.mark.parametrize("options", [{"dtype": torch.int64}, {"non_blocking": "yes"}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        to_device(t(), "meta", **options)


# skip ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "skip",
    [
        ("labels", "mask"),
        ("data['labels']", "data['meta'].mask"),
        ("['labels']", "['meta'].mask"),
        {"labels", "mask", "no such key"},
    ],
)
def test_skip_by_key_and_by_path(skip: Any) -> None:
    data = {"x": t(), "labels": [t()], "meta": SimpleNamespace(mask=t(), y=t())}

    moved = to_device(data, "meta", skip=skip, strict=True)

    assert moved["labels"] is data["labels"]
    assert moved["meta"].mask is data["meta"].mask
    assert moved["meta"].y.is_meta
    assert moved["x"].is_meta


def test_a_skipped_tensor_moves_where_it_is_not_skipped() -> None:
    x = t()
    moved = to_device({"a": x, "b": x, 7: x}, "meta", skip=("b", 7))
    assert moved["a"].is_meta
    assert moved["b"] is moved[7] is x


def test_skip_takes_the_key_none() -> None:
    data = {None: t(), "a": t(), "b": [t(), (t(),)]}
    moved = to_device(data, "meta", skip=[None])
    assert moved[None] is data[None]
    assert all(x.is_meta for x in (moved["a"], moved["b"][0], moved["b"][1][0]))


def test_skip_takes_one_key() -> None:
    assert to_device({"ab": t()}, "meta", skip="ab")["ab"].is_cpu
    assert to_device({"ab": t(), "a": t()}, "meta", skip="ab")["a"].is_meta


# strict -------------------------------------------------------------------------------------------


class Opaque:
    """A class that the walker does not look into."""

    def __init__(self, x: Any) -> None:
        self.inner = {"k": [x]}


class OpaqueSlots:
    __slots__ = ("_OpaqueSlots__private", "empty")

    def __init__(self, x: Any) -> None:
        self.__private = x


class Forgetful:
    """Its `to` leaves something behind."""

    def __init__(self, x: Any) -> None:
        self.x, self.y = x, x + 1

    def to(self, device: torch.device) -> "Forgetful":
        self.x = self.x.to(device)
        return self

    def method(self) -> None:
        pass


def closure(x: Any) -> Callable[[], Any]:
    return lambda: x


def default(x: Any) -> Callable[[], Any]:
    return lambda y=x: y


def module_with(x: Any) -> nn.Module:
    module = nn.Linear(1, 1)
    module.hidden = [x]  # type: ignore[assignment]
    return module


@pytest.mark.parametrize(
    ("hide", "path"),
    [
        (Opaque, "data['a'][0].inner['k'][0]"),
        (OpaqueSlots, "data['a'][0]._OpaqueSlots__private"),
        (closure, "data['a'][0].__closure__[0].cell_contents"),
        (default, "data['a'][0].__defaults__[0]"),
        (lambda x: functools.partial(print, 1, x), "data['a'][0].args[1]"),
        (lambda x: functools.partial(print, x=x), "data['a'][0].keywords['x']"),
        (lambda x: Opaque(Opaque(x)), "data['a'][0].inner['k'][0].inner['k'][0]"),
        (lambda x: Forgetful(x).method, "data['a'][0].__self__.x"),
        (Forgetful, "data['a'][0].y"),
        (module_with, "data['a'][0].hidden[0]"),
    ],
)
def test_strict_names_what_is_hidden(hide: Callable[[Tensor], Any], path: str) -> None:
    data = {"a": [hide(t())], "b": t()}

    with pytest.raises(MoveError) as caught:
        to_device(data, "meta", strict=True)

    assert f"{path} (float32[2], 8 bytes) on cpu" in str(caught.value)
    assert eval(path, {"data": data}).is_cpu
    to_device({"a": [hide(t())]}, "meta")  # without `strict` it passes
    to_device(data, "meta", strict=True, skip=("a",))


def test_strict_lists_all_and_says_how_many_more() -> None:
    with pytest.raises(MoveError) as caught:
        to_device([Opaque(t()) for _ in range(11)], "meta", strict=True)
    assert "`strict` found 11 tensors that did not move to meta" in str(caught.value)
    assert "and 3 more" in str(caught.value)


def test_strict_is_content_with_what_is_right() -> None:
    packed = nn.utils.rnn.pack_sequence([t()])
    data = {
        "packed": packed,
        "there": Opaque(torch.ones(1, device="meta")),
        "f": len,
        "m": nn.Linear(1, 1),
    }
    assert to_device(data, "meta", strict=True)["packed"].data.is_meta


# Objects that move themselves ---------------------------------------------------------------------


class Recorder:
    """Records how its `to` is called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []


class TakesDevice(Recorder):
    def to(self, device: Any) -> Any:
        self.calls.append(device)
        return self


class TakesAnything(Recorder):
    def to(self, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((*args, *kwargs.items()))
        return self


class TakesKeyword(Recorder):
    def to(self, *, device: Any = None, copy: bool = False) -> Any:
        self.calls.append(device)
        return self


class TakesAnnotated(Recorder):
    def to(self, where: "torch.device") -> Any:
        self.calls.append(where)
        return self


class TakesSomethingElse(Recorder):
    def to(self, other: Any = None, *contexts: Any, **options: Any) -> Any:
        raise AssertionError("called")


class TakesNothing(Recorder):
    def to(self) -> Any:
        raise AssertionError("called")


@pytest.mark.parametrize("cls", [TakesDevice, TakesAnything, TakesKeyword, TakesAnnotated])
def test_a_to_that_takes_a_device_is_called_once_on_a_copy(cls: type[Recorder]) -> None:
    data = cls()

    moved = to_device({"x": data}, "meta")["x"]

    assert moved is not data
    assert [call if isinstance(call, torch.device) else call[0] for call in moved.calls] == [META]
    assert data.calls == []


@pytest.mark.parametrize("cls", [TakesSomethingElse, TakesNothing])
def test_a_to_that_takes_no_device_is_not_called(cls: type[Recorder]) -> None:
    data = cls()
    assert to_device([data], "meta")[0] is data
    assert to_device(data, "meta", strict=True) is data


def test_an_error_inside_to_passes_with_our_note_and_is_not_retried() -> None:
    class Broken:
        calls = 0

        def to(self, device: torch.device) -> Any:
            Broken.calls += 1
            raise TypeError("a bug of its own")

    with pytest.raises(TypeError, match="a bug of its own") as caught:
        to_device({"g": [Broken()]}, "meta")

    assert Broken.calls == 1
    assert caught.value.__notes__ == [f"while moving data['g'][0] ({Broken.__qualname__}) to meta"]


def test_moving_in_place_does_not_reach_the_callers_containers() -> None:
    class Deep:
        def __init__(self) -> None:
            self.items = [t(), {"k": t(2)}]

        def to(self, device: torch.device) -> "Deep":
            self.items[0] = self.items[0].to(device)  # type: ignore[union-attr]
            self.items[1]["k"] = self.items[1]["k"].to(device)  # type: ignore[index,call-overload]
            return self

    data = Deep()
    moved = to_device(data, "meta")

    assert moved.items[0].is_meta
    assert moved.items[1]["k"].is_meta
    assert data.items[0].is_cpu
    assert data.items[1]["k"].is_cpu


class InPlace:
    __slots__ = ("__dict__", "x")

    def __init__(self) -> None:
        self.x, self.calls = t(), 0

    def to(self, device: torch.device) -> None:
        self.calls += 1
        if device.type == "cpu":
            raise ValueError("broken")
        self.x = self.x.to(device)


def test_r008_a_to_that_returns_nothing_moves_the_object_itself() -> None:
    data = InPlace()
    batch = {"points": data, "x": t()}

    moved = to_device(batch, "meta")

    assert moved["points"] is data
    assert data.x.is_meta
    assert data.calls == 1
    assert batch["points"] is data


def test_r008_what_fails_on_the_way_leaves_the_object_as_it_was() -> None:
    data = InPlace()
    data.x = t().to("meta")
    with pytest.raises(ValueError, match="broken"):
        to_device(data, "cpu")
    assert data.calls == 0


def test_an_object_that_is_there_is_not_asked() -> None:
    data = Forgetful(t())
    assert to_device([data], "cpu")[0] is data


# Registration -------------------------------------------------------------------------------------


class Graph:
    def __init__(self, nodes: Tensor, edges: list[Tensor]) -> None:
        self._parts = iter, nodes, edges
        self.get = lambda i: self._parts[i]


def flatten(graph: Graph) -> dict[str, object]:
    return {".get(1)": graph.get(1), ".get(2)": graph.get(2)}


def unflatten(graph: Graph, new: dict[str, Any]) -> Graph:
    return Graph(new[".get(1)"], new[".get(2)"])


@pytest.fixture
def registered() -> Iterator[None]:
    to_device.register(Graph, flatten, unflatten)
    yield
    to_device.unregister(Graph)


def test_registered_type(registered: None) -> None:
    data = {"g": Graph(t(), [t(2)])}

    moved = to_device(data, "meta")["g"]

    assert moved.get(1).is_meta
    assert moved.get(2)[0].is_meta
    assert data["g"].get(1).is_cpu
    assert to_device(data, "cpu")["g"] is data["g"]
    assert [path for path, _ in find_tensors(data)] == ["data['g'].get(1)", "data['g'].get(2)[0]"]


def test_registering_takes_effect_at_once_and_is_undone() -> None:
    record = Record(t())
    assert to_device([record], "meta")[0].x.is_meta  # now the quick way knows the type
    to_device.register(Record, lambda r: {}, lambda r, new: r)
    try:
        assert to_device([record], "meta")[0] is record
    finally:
        to_device.unregister(Record)
    assert to_device([record], "meta")[0].x.is_meta
    with pytest.raises(KeyError, match="which is not registered"):
        to_device.unregister(Record)


def test_registration_covers_subclasses_and_keeps_their_type(registered: None) -> None:
    class Sub(Graph):
        pass

    with pytest.raises(
        MoveError, match=r"must give back an object of type .*Sub, but gave Graph"
    ) as e:
        to_device([Sub(t(), [])], "meta")
    assert "while moving data[0]" in e.value.__notes__[0]


@pytest.mark.parametrize("wrong", [Tensor, nn.Linear, "Graph"])
def test_what_cannot_be_registered(wrong: Any) -> None:
    with pytest.raises(TypeError, match="`cls` must"):
        to_device.register(wrong, flatten, unflatten)


# Errors -------------------------------------------------------------------------------------------


def test_an_error_keeps_its_type_and_names_the_tensor(simulated_accelerator: Simulation) -> None:
    data = {"n": 1, "boxes": [t(), (), t(), torch.ones(100, 4, device="meta")], "z": t()}
    before = copy.copy(data["boxes"])

    with pytest.raises(
        NotImplementedError, match="Cannot copy out of meta tensor; no data!"
    ) as caught:
        to_device(data, "sim:0")

    assert caught.value.__notes__ == [
        "while moving data['boxes'][3] (float32[100, 4], 1.6 KB) from meta to sim:0"
    ]
    assert all(a is b for a, b in zip(data["boxes"], before, strict=True))  # type: ignore[arg-type]
    assert_on("cpu", {"z": data["z"], "b": before[:3]})


def test_out_of_memory_keeps_its_type() -> None:
    with simulated(memory=1000):
        with pytest.raises(torch.OutOfMemoryError) as caught:
            to_device({"a": [torch.ones(10), torch.ones(10_000)]}, "sim:0")
        assert (
            "data['a'][1] (float32[10000], 40.0 KB) from cpu to sim:0" in caught.value.__notes__[-1]
        )


def simulated(**options: Any) -> Simulation:
    try:
        return simulate(**options)
    except NotImplementedError as error:  # torch is too old for the simulation
        pytest.skip(str(error))


@pytest.mark.parametrize("key", [("a", 1), None, 2.5, "it's", b"x"])
def test_paths_are_expressions(key: Any) -> None:
    data = {key: UserDict(x=[torch.ones(1, device="meta")])}
    with pytest.raises(NotImplementedError) as caught:
        to_device(data, "cpu")
    assert f"data[{key!r}]['x'][0]" in caught.value.__notes__[0]


# float64 where there is none ----------------------------------------------------------------------


def test_R020_float64_becomes_float32_with_one_warning() -> None:
    data = {
        "x": t(),
        "ids": torch.tensor([7]),
        "deep": [
            torch.tensor([1.5], dtype=torch.float64),
            torch.tensor([2j], dtype=torch.complex128),
        ],
    }
    with simulated(float64=False):
        with pytest.warns(UserWarning, match=r"sim has no float64: data\['deep'\]\[0\]") as caught:
            moved = to_device(data, "sim:0")
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert [m.dtype for m in moved["deep"]] == [torch.float32, torch.complex64]
        assert moved["deep"][0].cpu().tolist() == [1.5]
        assert moved["ids"].dtype is torch.int64
        assert data["deep"][0].dtype is torch.float64

        with pytest.raises(MoveError, match=r"sim has no float64, .* data\['deep'\]\[0\]"):
            to_device(data, "sim:0", strict=True)
        quiet = to_device(data["deep"][:1], "sim:0", dtype=torch.float32)
        assert quiet[0].dtype is torch.float32


def test_R020_float64_in_modules() -> None:
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1).double())
    with simulated(float64=False):
        with pytest.raises(MoveError, match="float64"):
            to_device({"m": module}, "sim:0", strict=True)
        with pytest.warns(
            UserWarning, match=r"sim has no float64: data\['m'\]\[1\]\.weight"
        ) as caught:
            to_device({"m": module}, "sim:0")
        assert len(caught) == 1
        assert_on("sim:0", module)
        assert module[1].weight.dtype is module[1].running_var.dtype is torch.float32


# Properties ---------------------------------------------------------------------------------------


def aliases(data: Any) -> list[int]:
    """For each occurrence of a tensor, the number of its first occurrence."""
    first: dict[int, int] = {}
    return [first.setdefault(id(x), len(first)) for _, x in find_tensors(data)]


@given(batches(cycles=True))
@settings(deadline=None)
def test_moves_everything_and_changes_nothing_else(data: Any) -> None:
    before = [(path, x, x.device) for path, x in find_tensors(data)]

    moved = to_device(data, "meta", strict=True)

    assert_same(moved, data)
    after = list(find_tensors(moved))
    assert all(x.is_meta for _, x in after)
    assert len(after) == len(before)
    assert [(p, x, x.device) for p, x in find_tensors(data)] == before or all(
        a is b[1] for (_, a), b in zip(find_tensors(data), before, strict=True)
    )
    assert to_device(moved, "meta") is moved
    assert to_device(data, "cpu") is data


@given(batches())
@settings(deadline=None)
def test_the_quick_way_agrees_with_the_walker(data: Any) -> None:
    walker = map_tensors(data, lambda x: x.to("meta"))
    assert_same(to_device(data, "meta"), walker)


@given(batches(cycles=True))
@settings(deadline=None)
def test_paths_lead_to_their_tensors(data: Any) -> None:
    for path, x in find_tensors(data):
        assert eval(path, {"data": data, "Color": None}) is x, path


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"dtype": "float16"}, "`dtype` must be a floating-point dtype, but is 'float16'"),
        ({"skip": None}, "`skip` must be a collection .* but is None"),
        ({"skip": 1}, "`skip` must be a collection .* but is 1"),
        ({"skip": [["mask"]]}, r"`skip` must be a collection .* but is \[\['mask'\]\]"),
    ],
)
def test_a_wrong_option_is_named(option, message):
    with pytest.raises((TypeError, ValueError), match=message):
        to_device(torch.ones(1), "meta", **option)
