"""The loader in the main process and on a device: what comes out, in which order, how it ends."""

import copy
import inspect
import itertools
import pickle
import re
import warnings
from collections import namedtuple
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import devicekit.loader
from devicekit import DataLoader, Device, compat, pack
from devicekit.packing import LARGE

TorchLoader = torch.utils.data.DataLoader


class Squares(Dataset):
    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"x": torch.full((2, 3), float(index)), "y": index * index, "id": f"sample {index}"}


class FailsAt(Squares):
    def __init__(self, index, error):
        super().__init__(10)
        self.index = index
        self.error = error

    def __getitem__(self, index):
        if index == self.index:
            raise self.error
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __iter__(self):
        return iter(self.numbers)


class SizedStream(Stream):
    def __len__(self):
        return len(self.numbers)


def equal(ours, theirs):
    if isinstance(theirs, Tensor):
        return torch.equal(ours.cpu(), theirs)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return (
            type(ours) is type(theirs)
            and len(ours) == len(theirs)
            and all(map(equal, ours, theirs))
        )
    return ours == theirs


def epochs(loader, count=2):
    return [list(loader) for _ in range(count)]


SETTINGS = {
    "plain": {"batch_size": 3},
    "default": {},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "drop_last": {"batch_size": 3, "drop_last": True},
    "sampler": {"sampler": lambda: RandomSampler(range(10), replacement=True), "batch_size": 4},
    "batch_sampler": {"batch_sampler": lambda: BatchSampler(SequentialSampler(range(10)), 4, True)},
    "list sampler": {"sampler": lambda: [3, 1, 4, 1, 5], "batch_size": 2},
    "list batch_sampler": {"batch_sampler": lambda: [[3, 1], [4]]},
    "batch_size None": {"batch_size": None},
    "batch_size None, shuffled": {"batch_size": None, "shuffle": True},
    "generator": {"shuffle": True, "generator": lambda: torch.Generator().manual_seed(5)},
    "workers": {"batch_size": 3, "shuffle": True, "num_workers": 2},
    "workers, unordered": {"batch_size": 3, "num_workers": 1, "in_order": False},
    "kept workers": {"batch_size": 3, "num_workers": 1, "persistent_workers": True},
    "collate_fn": {"batch_size": 4, "collate_fn": len},
}


def made(settings):
    return {name: value() if _is_maker(name, value) else value for name, value in settings.items()}


def _is_maker(name, value):
    return name in ("sampler", "batch_sampler", "generator") and callable(value)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_gives_the_batches_of_torchs_loader_in_the_same_order(settings):
    torch.manual_seed(0)
    theirs = epochs(TorchLoader(Squares(), **made(settings)))
    torch.manual_seed(0)
    loader = DataLoader(Squares(), device="cpu", **made(settings))
    ours = epochs(loader)

    assert equal(ours, theirs)
    assert len(loader) == len(theirs[0])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_gives_the_same_batches_on_the_device(settings, simulated_accelerator):
    if settings.get("num_workers"):
        settings = {**settings, "multiprocessing_context": "fork"}
    torch.manual_seed(0)
    theirs = epochs(TorchLoader(Squares(), **made(settings)))
    torch.manual_seed(0)
    ours = epochs(DataLoader(Squares(), device="sim:1", **made(settings)))

    assert equal(ours, theirs)
    if "collate_fn" not in settings:
        assert {batch["x"].device for batch in itertools.chain(*ours)} == {torch.device("sim:1")}


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")  # each worker gives all of it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "data", [Stream(range(7)), SizedStream(range(7))], ids=["unsized", "sized"]
)
@pytest.mark.parametrize("batch_size", [3, None])
def test_iterable_datasets(workers, data, batch_size):
    theirs = epochs(TorchLoader(data, batch_size, num_workers=workers))
    loader = DataLoader(data, batch_size, num_workers=workers, device="cpu")

    assert equal(epochs(loader), theirs)
    with pytest.raises(TypeError, match=r"len\(\)"):
        len(iter(loader))


def test_the_length_of_an_iterable_dataset_is_torchs():
    assert len(DataLoader(SizedStream(range(7)), 3, device="cpu")) == 3
    assert len(DataLoader(SizedStream(range(7)), None, device="cpu")) == 7
    with pytest.raises(TypeError):
        len(DataLoader(Stream(range(7)), 3, device="cpu"))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_infinite_stream_can_be_left_and_begun_again(workers):
    class Naturals(IterableDataset):
        def __iter__(self):
            return itertools.count()

    loader = DataLoader(Naturals(), 2, num_workers=workers, device="cpu")
    for _ in range(2):
        first = list(itertools.islice(loader, 3))
        assert first[0].tolist() == [0, 1]


def test_takes_every_argument_of_torchs_loader():
    ours = inspect.signature(DataLoader).parameters
    theirs = inspect.signature(TorchLoader).parameters

    assert list(ours)[: len(theirs)] == list(theirs)
    assert list(ours)[len(theirs) :] == ["device", "pack", "prefetch", "on_device_data"]
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind
        if name != "pin_memory":
            assert ours[name].default == parameter.default


def test_is_a_loader_of_torch_with_what_the_caller_gave():
    data, collate = Squares(), list
    loader = DataLoader(data, 4, num_workers=2, collate_fn=collate, device="cpu")

    assert isinstance(loader, TorchLoader)
    assert isinstance(loader.device, Device)
    assert loader.dataset is data
    assert loader.collate_fn is collate
    assert loader.pin_memory is False
    assert loader.multiprocessing_context is None
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (4, 2, 2)
    list(loader)
    assert loader.collate_fn is collate
    assert loader.multiprocessing_context is None


def test_attributes_set_later_count_from_the_next_epoch():
    loader = DataLoader(Squares(4), 2, device="cpu")
    list(loader)
    loader.collate_fn = len

    assert list(loader) == [2, 2]
    with pytest.raises(ValueError, match="should not be set"):
        loader.batch_size = 3


def test_two_iterators_at_once_are_independent():
    loader = DataLoader(Squares(4), 2, device="cpu")

    assert [x["y"].tolist() == y["y"].tolist() for x, y in zip(loader, loader, strict=True)] == [
        True,
        True,
    ]


def test_can_be_copied_and_pickled():
    loader = DataLoader(Squares(), 3, device="cpu", pack=True, prefetch=2)
    theirs = list(loader)

    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert equal(list(other), theirs)
        assert (other.device, other.pack, other.prefetch) == ("cpu", True, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("pin_memory", "yes"), ("pack", None), ("prefetch", -1), ("prefetch", True)]
    + [("prefetch", 1.5), ("on_device_data", "ignore")],
)
def test_arguments_that_mean_nothing_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*{value}"):
        DataLoader(Squares(), **{name: value})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_workers": -1}, "num_workers option should be non-negative"),
        ({"persistent_workers": True}, "persistent_workers option needs num_workers > 0"),
        ({"prefetch_factor": 2}, "prefetch_factor option could only be specified"),
        ({"shuffle": True, "sampler": [1]}, "mutually exclusive"),
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(settings, words):
    with pytest.raises(ValueError, match=words):
        DataLoader(Squares(), device="cpu", **settings)


# Warnings are errors in this suite, so these tests also say that there are none.


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pin", ["auto", True, False])
def test_r036_r038_without_an_accelerator_nothing_is_pinned_or_said(workers, pin):
    loader = DataLoader(Squares(), 4, num_workers=workers, pin_memory=pin, device="cpu")

    assert loader.pin_memory is False
    epochs(loader)


def test_r038_nothing_is_pinned_for_the_cpu_beside_an_accelerator(simulated_accelerator):
    assert DataLoader(Squares(), pin_memory=True, device="cpu").pin_memory is False
    assert DataLoader(Squares(), device="sim").pin_memory is True
    assert DataLoader(Squares(), device="sim", pin_memory=False).pin_memory is False


def test_no_deprecated_argument_reaches_torch(simulated_accelerator):
    settings = {"num_workers": 1, "multiprocessing_context": "fork"}  # else torch pins nothing
    loader = DataLoader(Squares(), pin_memory_device="sim", device="sim", **settings)

    assert loader.pin_memory
    list(loader)


@dataclass
class Pair:
    x: Tensor
    y: Tensor


def as_pair(samples):
    return Pair(torch.stack([sample["x"] for sample in samples]), torch.ones(2))


class PinsItself:
    def __init__(self):
        self.pinned = 0

    def pin_memory(self):
        self.pinned += 1
        return self


def pins_itself(samples):
    return PinsItself()


@pytest.fixture
def before_moving(monkeypatch):
    """The batches as they are when they are moved to the device, for loaders with prefetch=0."""
    seen = []
    move = devicekit.loader.to_device

    def note(batch, device):
        seen.append(batch)
        return move(batch, device)

    monkeypatch.setattr(devicekit.loader, "to_device", note)
    return seen


@pytest.mark.parametrize("workers", [0, 1])
def test_r034_every_container_is_pinned(workers, simulated_accelerator, before_moving):
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = DataLoader(
        Squares(4), 2, collate_fn=as_pair, device="sim", prefetch=0, pack=False, **settings
    )

    assert all(type(batch) is Pair for batch in loader)
    assert len(before_moving) == 2
    assert all(batch.x.is_pinned() and batch.y.is_pinned() for batch in before_moving)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_batchs_own_pin_memory_is_called_once(workers, prefetch, simulated_accelerator):
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = DataLoader(
        Squares(4), 2, collate_fn=pins_itself, device="sim", prefetch=prefetch, **settings
    )

    assert [batch.pinned for batch in loader] == [1, 1]


def test_r028_tensors_on_the_device_are_left_with_one_warning(simulated_accelerator):
    data = TensorDataset(torch.arange(4.0, device="sim:0"), torch.arange(4))
    loader = DataLoader(data, 2, device="sim")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        batches = list(itertools.chain(*epochs(loader)))
    assert [str(each.message) for each in said if "data[0]" not in str(each.message)] == []
    assert len(said) <= 1  # none if another test has had it
    assert {x.device for batch in batches for x in batch} == {torch.device("sim:0")}


PACKS = {"auto": "auto", "always": True, "never": False}


@pytest.mark.parametrize("packing", PACKS.values(), ids=PACKS)
@pytest.mark.parametrize("workers", [0, 1])
def test_packing_changes_nothing_but_the_way(packing, workers, simulated_accelerator):
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    theirs = list(TorchLoader(Squares(), 4))
    loader = DataLoader(Squares(), 4, pack=packing, device="sim", **settings)
    batches = list(loader)

    assert equal(batches, theirs)
    batches[0]["x"] += 1  # independent of its neighbours
    assert batches[0]["y"].tolist() == [0, 1, 4, 9]


def test_batches_that_are_packed_already_come_out_unpacked(simulated_accelerator):
    def packed(samples):
        return pack([torch.tensor(sample["y"]) for sample in samples])

    for device, packing in itertools.product(("cpu", "sim"), ("auto", True, False)):
        loader = DataLoader(Squares(4), 2, collate_fn=packed, device=device, pack=packing)
        batches = list(loader)
        assert [[int(x) for x in batch] for batch in batches] == [[0, 1], [4, 9]]


@pytest.mark.parametrize("default", ["meta", "sim:1"])
@pytest.mark.parametrize("workers", [0, 2])
def test_r053_shuffling_and_seeding_under_another_default_device(
    default, workers, simulated_accelerator
):
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    torch.manual_seed(0)
    theirs = epochs(TorchLoader(Squares(), 3, shuffle=True, **settings))
    torch.set_default_device(default)
    try:
        torch.manual_seed(0)
        ours = epochs(DataLoader(Squares(), 3, shuffle=True, device="cpu", **settings))
        assert torch.empty(0).device == torch.device(default)
    finally:
        torch.set_default_device(None)

    assert equal(ours, theirs)


@pytest.mark.parametrize("workers", [0, 1])
def test_r053_under_cuda_as_the_default_device(workers, simulated_cuda):
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    torch.set_default_device("cuda")
    try:
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
            list(TorchLoader(Squares(), 3, shuffle=True))
        batches = list(DataLoader(Squares(6), 3, shuffle=True, **settings))
    finally:
        torch.set_default_device(None)
    assert sorted(int(y) for batch in batches for y in batch["y"]) == [0, 1, 4, 9, 16, 25]
    assert all(batch["y"].is_cuda for batch in batches)


def test_r053_a_generator_of_the_accelerator_lends_its_seed(simulated_accelerator):
    generator = torch.Generator("sim:0").manual_seed(7)
    cpu = torch.Generator().manual_seed(7)

    loader = DataLoader(Squares(), shuffle=True, generator=generator, device="cpu")
    assert loader.generator.device.type == "cpu"
    assert equal(list(loader), list(TorchLoader(Squares(), shuffle=True, generator=cpu)))


class OwnError(Exception):
    def __init__(self, text, code=3):
        super().__init__(text, code)


PLACES = [("cpu", 1), ("sim", 0), ("sim", 1), ("sim", 3)]


@pytest.mark.parametrize("error", [OwnError("bad sample"), KeyError("bad sample")], ids=repr)
@pytest.mark.parametrize(("device", "prefetch"), PLACES)
def test_r119_an_error_comes_at_its_place_with_its_own_type(
    error, device, prefetch, simulated_accelerator
):
    loader = DataLoader(FailsAt(6, error), 2, device=device, prefetch=prefetch)
    batches = iter(loader)

    assert [int(next(batches)["y"][0]) for _ in range(3)] == [0, 4, 16]
    with pytest.raises(type(error), match="bad sample") as caught:
        next(batches)
    assert caught.value is error
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_keyboard_interrupt_is_not_kept_back(device, simulated_accelerator):
    loader = DataLoader(FailsAt(6, KeyboardInterrupt()), 2, device=device)
    batches = iter(loader)

    with pytest.raises(KeyboardInterrupt):
        list(batches)
    assert list(batches) == []


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_r120_no_batch_is_lost_at_the_end(depth, length, simulated_accelerator):
    loader = DataLoader(Squares(length), None, device="sim", prefetch=depth)

    assert [batch["y"] for batch in loader] == [index * index for index in range(length)]
    assert len(iter(loader)) == len(loader) == length


def test_an_iterator_can_be_closed(simulated_accelerator):
    batches = iter(DataLoader(Squares(), device="sim"))
    next(batches)
    batches.close()

    assert list(batches) == []


def test_the_stream_is_made_once(simulated_accelerator):
    loader = DataLoader(Squares(), device="sim")
    list(loader)
    backend = loader._backend
    list(loader)

    assert loader._backend is backend is not None


def test_there_is_nothing_to_choose_without_a_process_group():
    loader = DataLoader(Squares(), device="cpu")
    loader.set_epoch(3)

    assert len(loader) == 10


# What `devicekit.compat` names of torch's loader.


def test_compat_starts_restarts_and_stops_torchs_iterator():
    loader = TorchLoader(range(4), batch_size=2, num_workers=1, persistent_workers=True)
    batches = compat.started_loader(loader, {"collate_fn": sum, "multiprocessing_context": None})

    assert loader.collate_fn is torch.utils.data.default_collate  # as it was
    assert loader._iterator is batches
    assert list(batches) == [1, 5]
    assert compat.restarted(loader, batches)
    assert list(batches) == [1, 5]
    assert not compat.restarted(loader, iter(()))
    assert compat.loader_is_healthy(batches)
    compat.stop_loader(batches)
    assert not compat.loader_is_healthy(batches)


def test_compat_has_nothing_to_stop_in_the_main_process():
    batches = iter(TorchLoader(range(4)))

    assert compat.loader_is_healthy(batches)
    compat.stop_loader(batches)
    assert len(list(batches)) == 4


Point = namedtuple("Point", "x y")

SAMPLES = [
    torch.ones(2),
    torch.ones(200, 200),
    torch.ones(2).to_sparse(),
    torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    {"a": torch.tensor(1), "b": [1.5, "text"], "c": Point(torch.zeros(1), 2)},
    (numpy.ones(3), numpy.float32(2), 3),
    torch.nn.Parameter(torch.ones(2)),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_compat_collates_as_torch_does(sample):
    try:
        theirs = torch.utils.data.default_collate([sample, sample])
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            compat.collate_for_packing([sample, sample], LARGE)
        return
    ours = compat.collate_for_packing([sample, sample], LARGE)
    assert equal(ours, theirs)
    assert type(ours) is type(theirs)


def test_compat_collates_with_the_callers_own_function_for_tensors(monkeypatch):
    def padded(batch, *, collate_fn_map=None):
        return torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)

    monkeypatch.setitem(
        torch.utils.data._utils.collate.default_collate_fn_map, torch.Tensor, padded
    )
    ours = compat.collate_for_packing([[torch.ones(1)], [torch.ones(2)]], LARGE)
    assert ours[0].tolist() == [[1, 0], [1, 1]]
