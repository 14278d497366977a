"""The walker: what it finds, how it names it, and how it rebuilds."""

import sys
import weakref
from collections import UserDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import cycle
from types import MappingProxyType, SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from devicekit import MoveError, find_tensors, pack, to_device, unpack
from devicekit.testing import assert_on, assert_same, batches
from devicekit.tree import (
    copy_containers,
    describe,
    find_hidden,
    map_tensors,
    register,
    unregister,
)


class Color(Enum):
    RED = 1


@dataclass
class Record:
    x: Any
    y: Any = None


class Private:
    __slots__ = ("__secret", "to")


class Shadowed(SimpleNamespace):
    @property
    def x(self) -> int:
        return 3


def t(value: float = 1.0) -> Tensor:
    return torch.full((2,), value)


def paths(data: object) -> list[str]:
    found = list(find_tensors(data))
    for path, x in found:
        assert eval(path, {"data": data}) is x, path
    return [path for path, _ in found]


# find_tensors -------------------------------------------------------------------------------------


def test_paths_in_containers() -> None:
    data = {
        "boxes": [t(), Record(t(), (t(),))],
        3: deque([t()]),
        (1, "a"): {None: t(), True: t(), 2.5: t(), b"x": t()},
        Color.RED: UserDict(a=t()),
        float("inf"): t(),
        "it's": {"s": {t()}},
        "n": SimpleNamespace(**{"a": t(), "a b": t(), "class": t()}),
    }
    assert paths(data) == [
        "data['boxes'][0]",
        "data['boxes'][1].x",
        "data['boxes'][1].y[0]",
        "data[3][0]",
        "data[(1, 'a')][None]",
        "data[(1, 'a')][True]",
        "data[(1, 'a')][2.5]",
        "data[(1, 'a')][b'x']",
        "list(data.values())[3]['a']",
        "list(data.values())[4]",
        """list(data["it's"]['s'])[0]""",
        "data['n'].a",
        "data['n'].__dict__['a b']",
        "data['n'].__dict__['class']",
    ]


def test_a_bare_tensor_and_the_name() -> None:
    assert [path for path, _ in find_tensors(t(), name="x")] == ["x"]
    assert [path for path, _ in find_tensors([t()], name="f(x)")] == ["f(x)[0]"]
    assert list(find_tensors({"a": 1, "b": "text"})) == []


def test_an_attribute_hidden_by_a_property() -> None:
    assert paths([Shadowed.__new__(Shadowed)]) == []
    data = SimpleNamespace.__new__(Shadowed)
    vars(data)["x"] = t()
    assert paths(data) == ["data.__dict__['x']"]


def test_paths_in_modules() -> None:
    net = nn.Module()
    net.body = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    net.heads = nn.ModuleDict({"a b": nn.Linear(1, 1, bias=False)})
    net.extra = nn.ParameterList([nn.Parameter(t())])
    net.named = nn.ParameterDict({"k": nn.Parameter(t())})
    net.tied = net.body[0]
    net.add_module("2", nn.Linear(1, 1, bias=False))
    assert paths({"m": net}) == [
        "data['m'].body[0].weight",
        "data['m'].body[1].running_mean",
        "data['m'].body[1].running_var",
        "data['m'].body[1].num_batches_tracked",
        "data['m'].heads['a b'].weight",
        "data['m'].extra[0]",
        "data['m'].named['k']",
        "getattr(data['m'], '2').weight",
    ]


def test_paths_in_optimizers() -> None:
    module = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    module(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert paths(optimizer) == [
        "data.param_groups[0]['params'][0]",
        "list(data.state.values())[0]['momentum_buffer']",
    ]


def test_a_tensor_twice_comes_twice_and_a_container_once() -> None:
    x = t()
    shared = [x]
    data: list[Any] = [x, x, shared, shared]
    data.append(data)
    assert paths(data) == ["data[0]", "data[1]", "data[2][0]"]


def test_it_is_lazy_and_deep() -> None:
    data: Any = t()
    for _ in range(sys.getrecursionlimit() * 3):
        data = [data]
    path, _ = next(find_tensors([t(), data]))
    assert path == "data[0]"
    assert len(list(find_tensors(data))) == 1


def test_objects_that_move_themselves_are_looked_into() -> None:
    class Mover:
        def __init__(self) -> None:
            self.parts = {"x": t()}

        def to(self, device: torch.device) -> Any:
            return self

    assert paths([Mover()]) == ["data[0].parts['x']"]


def test_hidden_and_not_hidden() -> None:
    class Opaque:
        def __init__(self) -> None:
            self.x = t()

    data = [Opaque(), t()]
    assert paths(data) == ["data[1]"]
    assert [path for path, _ in find_hidden(data)] == ["data[0].x", "data[1]"]
    left = find_hidden(data, leave=lambda step, path, x: path() == "data[0].x")
    assert [path for path, _ in left] == ["data[1]"]


def test_hidden_in_private_slots() -> None:
    data = Private()
    data._Private__secret = t()  # type: ignore[attr-defined]
    assert [path for path, _ in find_hidden(data)] == ["data._Private__secret"]


# map_tensors --------------------------------------------------------------------------------------


def test_mapping_gives_back_the_object_where_nothing_changed() -> None:
    data = {"a": [t()], "b": (1, "x")}
    assert map_tensors(data, lambda x: x) is data
    doubled = map_tensors(data, lambda x: x * 2)
    assert doubled["b"] is data["b"]
    assert doubled["a"][0].tolist() == [2, 2]


def test_other_is_asked_once_about_what_is_not_looked_into() -> None:
    class Opaque:
        pass

    opaque, seen = Opaque(), []

    def other(x: object) -> object:
        seen.append(x)
        return "replaced"

    data = [opaque, {"k": opaque}, 3, "a", None]
    assert map_tensors(data, lambda x: x, other=other) == [
        "replaced",
        {"k": "replaced"},
        3,
        "a",
        None,
    ]
    assert seen == [opaque]


def test_an_error_is_noted_once_with_the_path() -> None:
    def fail(x: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        map_tensors({"a": [1, t()]}, fail, name="batch")
    assert caught.value.__notes__ == ["at batch['a'][1] (float32[2], 8 bytes)"]


def test_what_is_in_the_memo_is_not_mapped_again() -> None:
    x = t()
    memo: dict[int, Any] = {id(x): "known"}
    assert map_tensors([x], lambda x: x, memo=memo) == ["known"]


def test_defaults_are_kept_in_a_cycle_of_defaultdicts() -> None:
    data: defaultdict[str, Any] = defaultdict(lambda: 7)
    data["self"], data["x"] = data, t()
    mapped = map_tensors(data, lambda x: x + 1)
    assert mapped["self"] is mapped
    assert mapped["new"] == 7
    assert "new" not in data


def test_copy_containers_shares_only_the_leaves() -> None:
    class Holder:
        def __init__(self) -> None:
            self.x = t()
            self.nested = {"k": [self.x, {"s": ()}]}

    data = Holder()
    nested = data.nested
    assert copy_containers(data) is data
    assert data.nested == nested
    assert data.nested is not nested
    assert data.nested["k"] is not nested["k"]
    assert data.nested["k"][0] is data.x


@given(batches(cycles=True))
@settings(deadline=None)
def test_mapping_twice_gives_back_equal_data(data: Any) -> None:
    # A new tensor each time, with the same values.
    assert_same(map_tensors(map_tensors(data, torch.clone), torch.clone), data)


# describe and the assertions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.ones(()), "float32[], 4 bytes"),
        (torch.ones(1, dtype=torch.uint8), "uint8[1], 1 byte"),
        (torch.ones(2, 3, dtype=torch.int64), "int64[2, 3], 48 bytes"),
        (torch.ones(1000, 4), "float32[1000, 4], 16.0 KB"),
        (torch.empty(10**6, device="meta"), "float32[1000000], 4.0 MB"),
        (torch.empty(10**9, device="meta"), "float32[1000000000], 4.0 GB"),
        (torch.empty(10**12, 300, device="meta"), "float32[1000000000000, 300], 1200.0 TB"),
        (Record(1), "Record"),
    ],
)
def test_describe(x: object, text: str) -> None:
    assert describe(x) == text


class Refuses(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.numel, Tensor.shape.__get__):
            raise KeyError("not asked for this")
        return super().__torch_function__(func, types, args, kwargs)


def test_describe_what_refuses_to_tell() -> None:
    """An error in the words for a tensor would take the place of the error that they explain."""
    assert describe(torch.ones(2).as_subclass(Refuses)) == "float32[?]"
    assert describe(nn.UninitializedParameter()) == "float32[?]"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_describe_nested_tensors() -> None:
    assert describe(torch.nested.nested_tensor([torch.ones(1)])).startswith("float32[nested]")
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
    assert describe(nested).startswith("float32[")


def tagged(**attributes: Any) -> Tensor:
    """A tensor with attributes, as a bounding box has the size of its image."""
    x = t()
    vars(x).update(attributes)
    return x


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([t()], [t(2)]),
        ([t()], (t(),)),
        ({"a": t(), "b": t()}, {"b": t(), "a": t()}),
        ([t()], [t(), t()]),
        ([t()], [t().double()]),
        ({t(), t(2)}, {t(), t(3)}),
        (Record(1), Record(2)),
        ([t()], [t().requires_grad_()]),
        ([tagged(size=(2, 3))], [tagged(size=(3, 2))]),
        ([tagged(scale=t(1))], [tagged(scale=t(2))]),
        ([tagged(size=None)], [tagged()]),
    ],
)
def test_assert_same_sees_differences(a: Any, b: Any) -> None:
    with pytest.raises(AssertionError, match="at "):
        assert_same(a, b)
    assert_same(a, a)


def test_assert_same_takes_nan_and_sets() -> None:
    assert_same([t(float("nan"))], [t(float("nan"))])
    assert_same({t(1), t(2), t(3)}, {t(3), t(1), t(2)})


def test_assert_on_lists_what_is_elsewhere() -> None:
    with pytest.raises(AssertionError, match=r"data\[0\] \(float32\[2\], 8 bytes\) on cpu"):
        assert_on("meta", [t(), torch.ones(1, device="meta")])
    with pytest.raises(AssertionError, match="found none in list"):
        assert_on("cpu", [1])


class AsksNobody(type):
    """A metaclass that raises for every attribute that no class has."""

    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(f"asked the metaclass for {name}")


class AnswersAll(type):
    """A metaclass that has an answer to every name, as classes of mocks and of schemas do."""

    def __getattr__(cls, name: str) -> Any:
        return lambda *args: cls


class Unbound:
    """A proxy that has no object yet: whatever it is asked, it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"nothing bound, asked for {name}")


def test_weak_proxies_are_left_to_the_owner_of_what_they_stand_for():
    image, layer = t(), nn.Linear(1, 1)
    data = [weakref.proxy(image), weakref.proxy(layer)]
    assert to_device(data, "meta") is data
    assert to_device(data, "meta", skip=("other",)) is data
    assert not layer.weight.is_meta
    with pytest.raises(MoveError, match="found 3 tensors that did not move"):
        to_device(data, "meta", strict=True)


def test_modules_named_like_keywords_have_paths_that_python_reads():
    model = nn.Sequential()
    model.add_module("class", nn.Linear(1, 1, bias=False))
    ((path, weight),) = find_tensors(model, name="model")
    assert path == "getattr(model, 'class').weight"
    assert eval(path, {"model": model}) is weight


class Guarded(dict[str, Any], metaclass=AsksNobody):
    """A container of such a class."""


@pytest.mark.parametrize("metaclass", [AsksNobody, AnswersAll])
def test_a_metaclass_is_not_asked_what_its_objects_have(metaclass):
    cls = metaclass("Odd", (), {})
    odd = cls()
    vars(odd)["x"] = t()
    data = [odd, Guarded(x=t())]
    assert [path for path, _ in find_tensors(data)] == ["data[1]['x']"]
    moved = to_device(data, "meta")
    assert moved[0] is odd
    assert moved[1]["x"].is_meta
    assert type(moved[1]) is Guarded
    assert [path for path, _ in find_hidden(data)] == ["data[0].x", "data[1]['x']"]


def test_objects_that_raise_when_asked_for_their_class_are_passed_through():
    class Owner:
        x = 1

    dead = weakref.proxy(Owner())  # its object is gone
    unbound = Unbound()
    data = [dead, unbound, t()]
    assert [path for path, _ in find_tensors(data)] == ["data[2]"]
    for strict in (False, True):
        moved = to_device(data, "meta", strict=strict)
        assert moved[2].is_meta
        assert moved[1] is unbound
    opened = unpack(pack(data))
    assert opened[1] is unbound
    assert torch.equal(opened[2], t())


def test_tensors_in_keys_are_found_where_no_mover_reaches():
    x, record = t(), (t(), 1)
    data = {x: 1, record: t(), "name": 2}
    found = dict(find_hidden(data))
    assert list(found) == ["list(data.values())[1]", "list(data)[0]", "list(data)[1][0]"]
    assert all(eval(path, {"data": data}) is tensor for path, tensor in found.items())
    with pytest.raises(MoveError, match=r"list\(data\)\[0\]"):
        to_device({x: 1}, "meta", strict=True)


class Refusing:
    """A descriptor that raises when it is read, from an object or from its class."""

    def __get__(self, x: object, cls: type | None = None) -> NoReturn:
        raise ArithmeticError


def refuse(*args: object) -> NoReturn:
    raise ArithmeticError


@pytest.mark.parametrize("base", [dict, list, tuple, deque, defaultdict, UserDict, SimpleNamespace])
@pytest.mark.parametrize(
    "members",
    [
        *({name: Refusing()} for name in ("to", "_fields", "n_sequence_fields")),
        *({name: value} for name in ("_fields", "to") for value in (3, "ab", ("a",))),
        *({name: property(refuse)} for name in ("maxlen", "default_factory", "__dict__")),
        dict.fromkeys(("__eq__", "__len__", "__iter__", "__repr__", "__setattr__"), refuse),
    ],
    ids=lambda members: ", ".join(members),
)
def test_classes_that_refuse_or_lie_when_asked(base: type, members: dict[str, Any]) -> None:
    cls = type("Odd", (base,), members)
    x = cls.__new__(cls, (t(),)) if base is tuple else cls.__new__(cls)
    if base in (dict, defaultdict):
        dict.__setitem__(x, "a", t())
    elif base in (list, deque):
        base.append(x, t())
    elif base is not tuple:
        object.__setattr__(x, "data", {"a": t()})
    found = [tensor for _, tensor in find_tensors([x])]
    moved = [tensor for _, tensor in find_tensors(map_tensors([x], torch.clone))]
    reachable = "__dict__" not in members  # else nothing can be rebuilt: it is passed through
    assert len(found) == len(moved) == int(reachable)
    assert list(find_hidden([x])) is not None


def test_keys_without_a_text_are_counted() -> None:
    deep: Any = ()
    for _ in range(2000):
        deep = (deep,)
    data = {key: t() for key in (10**5000, -(10**5000), deep, (1, 10**5000), "ﬁ", -1)}
    assert paths(data)[:4] == [f"list(data.values())[{i}]" for i in range(4)]
    assert paths(data)[4:] == ["data['ﬁ']", "data[-1]"]


class Field:
    """A descriptor with a say in what is read, as those of some libraries."""

    def __get__(self, x: object, cls: type | None = None) -> int:
        return 3

    def __set__(self, x: object, value: object) -> None: ...


def test_names_that_lead_elsewhere_are_looked_up_in_the_dict() -> None:
    class Odd(SimpleNamespace):
        field = Field()

    data = Odd()
    vars(data).update({name: t() for name in ("field", "ﬁ", "__class__", "größe", "__doc__")})
    assert paths(data) == [
        "data.__dict__['field']",
        "data.__dict__['ﬁ']",
        "data.__dict__['__class__']",
        "data.größe",
        "data.__doc__",
    ]
    object.__getattribute__(data, "__dict__")[3] = t()
    assert paths(data)[-1] == "data.__dict__[3]"


def test_proxies_of_mappings_that_cannot_be_copied() -> None:
    class View(Mapping[str, Any]):
        def __init__(self, x: Tensor) -> None:
            self.x = x

        def __getitem__(self, key: str) -> Any:
            return {"x": self.x}[key]

        def __iter__(self) -> Iterator[str]:
            return iter(["x"])

        def __len__(self) -> int:
            return 1

    data = [MappingProxyType(View(t()))]
    assert paths(data) == ["data[0]['x']"]
    assert to_device(data, "meta")[0]["x"].is_meta


class Closed:
    """A type of which nothing is known."""


@contextmanager
def flattened_to(*answers: Any) -> Iterator[None]:
    """A `flatten` for `Closed` that gives these, one after another."""
    given_out = cycle(answers)
    register(Closed, lambda x: next(given_out), lambda x, new: Closed())
    try:
        yield
    finally:
        unregister(Closed)


@pytest.mark.parametrize("use", [find_tensors, lambda data: [map_tensors(data, torch.clone)]])
@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([[t()]], "gave a list"),
        ([None], "gave a NoneType"),
        ([{3: t()}], "a key is a int"),
        ([{".a": t()}, {}], "changed while it was looked at"),
    ],
)
def test_a_flatten_that_gives_something_else_is_explained(
    use: Callable[[Any], Any], answers: list[Any], words: str
) -> None:
    with flattened_to(*answers), pytest.raises(MoveError, match=words):
        list(use([Closed()]))


def test_steps_are_asked_for_once_for_each_container() -> None:
    # Asked again for each of its children, a batch of some thousand would take minutes.
    asked = []

    def flatten(x: Closed) -> dict[str, Any]:
        asked.append(x)
        return {f".a{i}": t() for i in range(100)}

    register(Closed, flatten, lambda x, new: Closed())
    try:
        map_tensors([Closed()], torch.clone, skip=lambda step, path: False)
    finally:
        unregister(Closed)
    assert len(asked) < 5


def test_what_must_be_there_before_it_is_made_is_refused_with_a_remedy() -> None:
    class Pair(tuple[Tensor, ...]):
        me: object

    pair = Pair((torch.ones(1), torch.ones(1)))
    pair.me = pair
    with pytest.raises(MoveError, match=r"Pair contains itself, .*: break the cycle") as caught:
        to_device({"pair": pair}, "meta")
    assert "while moving data['pair']" in caught.value.__notes__[0]
