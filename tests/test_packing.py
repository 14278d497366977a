"""pack and unpack: any structure, one buffer, independent tensors."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader

from devicekit import compat, find_tensors, pack, pin_memory, to_device, unpack
from devicekit.errors import MoveError
from devicekit.packing import LARGE, Packed, pays

Pair = namedtuple("Pair", "left right")


@dataclass
class Sample:
    image: Tensor
    label: int
    extra: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor


def number(i: float) -> Tensor:
    return torch.tensor([i, i + 0.5])


STRUCTURES = {
    "tensor": lambda: number(1),
    "list": lambda: [number(1), number(2), "a", None],
    "tuple": lambda: (number(1), 7),
    "dict": lambda: {"x": number(1), 3: {"y": number(2)}},
    "namedtuple": lambda: Pair(number(1), [number(2)]),
    "OrderedDict": lambda: OrderedDict(b=number(1), a=number(2)),
    "defaultdict": lambda: defaultdict(list, a=number(1)),
    "deque": lambda: deque([number(1), number(2)], maxlen=4),
    "dataclass": lambda: Sample(number(1), 3, {"m": number(2)}),
    "frozen slots": lambda: Frozen(number(1)),
    "namespace": lambda: SimpleNamespace(x=number(1)),
    "set": lambda: {number(1)},
    "proxy": lambda: MappingProxyType({"x": number(1)}),
    "packed sequence": lambda: pack_sequence([number(1), torch.ones(1)]),
    "empty": dict,
    "no tensor": lambda: [1, "a"],
}


def assert_equal(found: object, expected: object) -> None:
    ours, theirs = list(find_tensors(found)), list(find_tensors(expected))
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        assert type(a) is type(b), path
        assert a.dtype == b.dtype, path
        assert a.shape == b.shape, path
        assert torch.equal(a, b.to(a.device)), path


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_comes_back(name):
    data = STRUCTURES[name]()
    packed = pack(data)
    result = unpack(packed)
    assert type(result) is type(data)
    assert_equal(result, data)
    if name == "deque":
        assert result.maxlen == 4
    if name == "defaultdict":
        assert result.default_factory is list


def test_small_tensors_are_one_buffer():
    data = [torch.ones(3), torch.ones(2, dtype=torch.int64), torch.ones(5)]
    packed = pack(data)
    assert list(find_tensors(packed, name="p")) == [("p.buffer", packed.buffer)]
    assert packed.buffer.dtype == torch.uint8
    assert packed.buffer.nbytes == 64 + 32  # int64: 16 bytes, padded; float32: 32


DTYPES = sorted(
    {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    - {each for each in vars(torch).values() if str(each).startswith(("torch.q", "torch.bits"))},
    key=str,
)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("size", [16, 32], ids=["equal shapes", "mixed shapes"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, size):
    raw = torch.arange(32, dtype=torch.uint8)
    if dtype == torch.bool:
        raw = raw % 2
    tensors = [raw[:16].view(dtype), raw[-size:].view(dtype)]
    result = unpack(pack([torch.ones(1), *tensors]))
    for found, expected in zip(result[1:], tensors, strict=True):
        assert found.dtype == dtype
        assert found.shape == expected.shape
        assert found.view(torch.uint8).tolist() == expected.view(torch.uint8).tolist()


def test_mixed_dtypes_stay_aligned():
    data = [torch.ones(n, dtype=d) for n in (1, 3) for d in (torch.int8, torch.float64, torch.bool)]
    result = unpack(pack(data))
    assert_equal(result, data)
    assert all(each.data_ptr() % each.element_size() == 0 for each in result)


def test_empty_and_scalar_tensors():
    data = [torch.zeros(0), torch.zeros(2, 0, 3), torch.tensor(5), torch.zeros(0, dtype=torch.bool)]
    assert_equal(unpack(pack(data)), data)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(48.0).view(2, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(12.0).view(3, 4)[:, ::2],
        torch.arange(3.0).expand(4, 3),
        torch.arange(12.0)[3:9],
    ],
    ids=["transposed", "channels_last", "step", "expanded", "slice"],
)
def test_layout_is_kept_as_tensor_to_keeps_it(tensor):
    result = unpack(pack([tensor, torch.ones(2)]))[0]
    assert torch.equal(result, tensor)
    assert result.stride() == tensor.clone().stride()


def test_conjugate_and_negative_views():
    z = torch.randn(3, dtype=torch.complex64)
    data = [z, z.conj(), z.conj().imag, torch.ones(1)]
    assert_equal(unpack(pack(data)), data)


def test_aliases_stay_one():
    x = torch.ones(2)
    result = unpack(pickle.loads(pickle.dumps(pack({"a": x, "b": [x]}))))
    assert result["a"] is result["b"][0]


def test_input_is_unchanged_and_not_shared():
    x = torch.ones(2)
    data = [x]
    unpack(pack(data))[0].zero_()
    assert data[0] is x
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("shapes", [[(2,), (2,)], [(2,), (3,)]], ids=["equal", "mixed"])
def test_version_counters_are_independent(shapes):
    """Views of one tensor would fail here with "modified by an inplace operation"."""
    x, y = unpack(pack([torch.ones(shape) for shape in shapes]))
    w = torch.ones(2, requires_grad=True)
    loss = (w * x).sum()
    before = x._version
    y.sub_(1)
    assert x._version == before
    loss.backward()
    assert w.grad.tolist() == [1, 1]
    assert not x._is_view()


def test_a_compiled_function_may_change_one_of_them():
    """AOTAutograd compares places in memory by the element, whatever its size."""

    def step(image, label):
        return image.div_(2).sum() + label.sum()

    torch.compiler.reset()
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    image, label = unpack(pack([torch.ones(2, 3, 4), torch.arange(2)]))
    assert compiled(image, label).item() == 13
    assert image.sum().item() == 12


def test_storage_is_the_whole_buffer():
    x, _ = unpack(pack([torch.ones(2), torch.ones(1000)]))
    assert x.untyped_storage().nbytes() >= 4008
    file = io.BytesIO()
    torch.save(x, file)
    assert len(file.getvalue()) > 4000
    file = io.BytesIO()
    torch.save(x.clone(), file)
    assert len(file.getvalue()) < 3000


def test_tensors_in_shared_memory_are_packed_as_others_are():
    data = [torch.arange(3).share_memory_(), torch.arange(3)]
    packed = pack(data)
    assert packed.buffer.nbytes == 48
    assert_equal(unpack(packed), data)


def test_large_tensors_are_passed_on():
    large = torch.zeros(LARGE, dtype=torch.uint8)
    packed = pack([large, torch.ones(2)])
    assert packed.buffer.nbytes == 8
    assert unpack(packed)[0] is large


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_what_cannot_be_packed_is_passed_on():
    class Tagged(Tensor):
        pass

    w = torch.ones(2, requires_grad=True)
    odd = {
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "requires grad": w,
        "history": w * 2,
        "sparse": torch.eye(2).to_sparse(),
        "csr": torch.eye(2).to_sparse_csr(),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        "meta": torch.ones(2, device="meta"),
        "subclass": torch.ones(2).as_subclass(Tagged),
        "module": torch.nn.Linear(1, 1),
    }
    result = unpack(pack({**odd, "plain": torch.ones(2)}))
    assert all(result[name] is value for name, value in odd.items())


class Corners:
    """Looks at its tensor when it is made."""

    def __init__(self, xyxy: Tensor) -> None:
        assert xyxy.shape[-1] == 4
        self.xyxy = xyxy
        self.widths = xyxy[:, 2] - xyxy[:, 0]


@dataclass(frozen=True)
class Number:
    """Is hashed by the value of its tensor."""

    x: Tensor

    def __hash__(self) -> int:
        return hash(self.x.item())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and torch.equal(self.x, other.x)


def test_what_looks_at_its_tensors_when_it_is_made_is_passed_on():
    to_device.register(Corners, lambda c: {".xyxy": c.xyxy}, lambda c, new: Corners(new[".xyxy"]))
    try:
        xyxy = torch.tensor([[0.0, 0.0, 3.0, 4.0]])
        packed = pack([xyxy, Corners(xyxy), {Number(torch.tensor(5))}, torch.ones(2)])
        assert packed.buffer.nbytes == 8
        tensor, corners, numbers, _ = unpack(pickle.loads(pickle.dumps(packed)))
        assert corners.widths.tolist() == [3]
        assert corners.xyxy is tensor
        assert Number(torch.tensor(5)) in numbers
        moved = unpack(pack([Corners(xyxy), torch.ones(2)]).to("meta"))
        assert moved[0].widths.is_meta
    finally:
        to_device.unregister(Corners)


def test_packed_in_packed_stays_itself():
    inner = pack([torch.zeros(2), torch.ones(2)])
    result = unpack(pack([torch.full((3,), 5.0), inner]))
    assert result[0].tolist() == [5, 5, 5]
    assert [each.tolist() for each in unpack(result[1])] == [[0, 0], [1, 1]]


def test_pickle_holds_one_tensor():
    data = [torch.ones(4) for _ in range(100)]
    text = pickle.dumps(pack(data))
    assert text.count(b"_rebuild_tensor") == 1
    assert_equal(unpack(pickle.loads(text)), data)


def test_moves_with_its_structure():
    data = {"x": torch.ones(2), "large": torch.zeros(LARGE, dtype=torch.uint8)}
    moved = pack(data).to("meta")
    assert isinstance(moved, Packed)
    result = unpack(moved)
    assert {each.device.type for each in result.values()} == {"meta"}
    assert result["x"].shape == (2,)


def test_all_else_in_it_moves_too():
    packed = pack([torch.ones(2), torch.nn.Linear(1, 1)])
    assert unpack(packed.to("meta"))[1].weight.is_meta


def test_where_all_is_in_the_buffer_only_the_buffer_is_moved():
    """A walk over the structure would take longer than moving the buffer."""
    packed = pack([torch.ones(2), {"n": 3}])
    assert packed.movable is packed.buffer


def test_movers_take_it_anywhere(simulated_accelerator):
    device = simulated_accelerator.devices[1]
    batch = [pack({"x": torch.ones(2), "n": 3}), torch.zeros(1)]
    moved = to_device(batch, device)
    assert unpack(moved[0])["x"].device == device
    assert unpack(moved[0])["n"] == 3
    assert unpack(batch[0])["x"].device.type == "cpu"
    assert to_device(moved, device)[0].buffer is moved[0].buffer
    assert unpack(to_device(moved, "cpu")[0])["x"].tolist() == [1, 1]


def test_pins_as_one_buffer(simulated_accelerator):
    large = torch.zeros(LARGE, dtype=torch.uint8)
    (packed,) = pin_memory([pack({"x": torch.ones(2), "large": large})])
    assert packed.buffer.is_pinned()
    assert all(tensor.is_pinned() for tensor in unpack(packed).values())
    assert packed.pin_memory().buffer is packed.buffer


def test_unpacked_tensors_work_on_the_device(simulated_accelerator):
    device = simulated_accelerator.devices[0]
    mixed = [torch.ones(3), torch.ones(2, 2), torch.arange(3), torch.tensor(True)]
    assert_equal([each.cpu() for each in unpack(pack(mixed).to(device))], mixed)


def packed_collate(samples: list[object]) -> Packed[object]:
    return pack(samples)


@pytest.mark.parametrize("size", [3, LARGE // 8 - 1], ids=["in the pipe", "in shared memory"])
def test_travels_from_a_worker(size):
    loader = DataLoader([torch.full((size,), i) for i in range(8)], 4, num_workers=1)
    loader.collate_fn = packed_collate
    found = list(loader)
    assert all(packed.buffer.is_shared() == (size > 3) for packed in found)
    batches = [unpack(packed) for packed in found]
    assert [[x[0].item() for x in batch] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(x.data_ptr() % 64 == 0 for x, *_ in batches)


@pytest.mark.parametrize("data", [[], ["a"], [torch.zeros(0)], [torch.ones(3), {"n": 1}]])
def test_a_small_buffer_is_sent_without_a_descriptor(data):
    text = bytes(ForkingPickler.dumps(pack(data)))
    assert b"rebuild" not in text
    result = unpack(pickle.loads(text))
    assert_equal(result, data)
    for _, tensor in find_tensors(result):
        tensor.zero_()


def test_shared_memory_needs_no_copy_to_be_sent():
    """`UntypedStorage._new_shared` is private: this fails when it changes."""
    buffer = compat.shared_memory(100)
    assert buffer.is_shared()
    assert (buffer.dtype, buffer.shape) == (torch.uint8, (100,))
    pointer = buffer.data_ptr()
    assert buffer.share_memory_().data_ptr() == pointer
    assert compat.shared_memory(0).shape == (0,)


def test_no_float64_on_mps():
    with pytest.raises(MoveError, match=r"MPS has no torch.float64.*to_device\(unpack\(packed\)"):
        pack([torch.ones(2, dtype=torch.float64)]).to("mps")


def test_when_packing_pays():
    assert pays(1000, 1000 * 16)
    assert not pays(2, 32)
    assert not pays(100, 100 * LARGE)
    assert pays(1, 16, from_worker=True)
    assert not pays(0, 0, from_worker=True)


leaves = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=2),
    st.builds(
        lambda shape, dtype, flip: (
            torch.arange(7).repeat(20)[: torch.Size(shape).numel()].view(shape).to(dtype).mT
            if flip and len(shape) > 1
            else torch.arange(7).repeat(20)[: torch.Size(shape).numel()].view(shape).to(dtype)
        ),
        st.lists(st.integers(0, 4), max_size=3),
        st.sampled_from([torch.float32, torch.int64, torch.bool, torch.float16, torch.complex64]),
        st.booleans(),
    ),
)
structures = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=2), inner, max_size=4),
        st.builds(Pair, inner, inner),
        st.builds(lambda x: [x, x], inner),
        st.builds(Frozen, inner),
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(structures)
def test_any_structure_comes_back_through_a_pickle(data):
    result = unpack(pickle.loads(pickle.dumps(pack(data))))
    assert_equal(result, data)

    def pattern(x):
        ids: dict[int, int] = {}
        return [ids.setdefault(id(tensor), len(ids)) for _, tensor in find_tensors(x)]

    assert pattern(result) == pattern(data)


@pytest.mark.parametrize("other", [3, None, [torch.ones(1)]])
def test_unpack_refuses_what_was_not_packed(other):
    with pytest.raises(TypeError, match="`packed` must be what `pack` returned, but is a "):
        unpack(other)
