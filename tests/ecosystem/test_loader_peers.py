"""The loader in Lightning, accelerate and torchdata, which make other loaders of it."""

import multiprocessing
from typing import NamedTuple

import pytest
import torch
from torch.utils.data import Dataset

from devicekit import DataLoader, prefetch_to_device

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.filterwarnings("ignore"),  # the peers' own
]


class Numbers(Dataset):
    def __init__(self, length=10):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def numbers(batches):
    return [int(n) for batch in batches for n in batch.flatten()]


# ------------------------------------------------- Lightning


@pytest.fixture
def lightning(tmp_path):
    module = pytest.importorskip("lightning.pytorch")

    class Model(module.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen = []

        def training_step(self, batch, index):
            self.seen += numbers([batch])
            return self.layer(batch).sum()

        def validation_step(self, batch, index):
            self.log("loss", self.layer(batch).sum())

        def predict_step(self, batch, index):
            return batch

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trainer(**settings):
        return module.Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **settings,
        )

    module.Model, module.trainer = Model, trainer
    return module


WORKERS = [
    pytest.param({}, id="main process"),
    pytest.param({"num_workers": 1}, id="worker"),
    pytest.param({"num_workers": 1, "persistent_workers": True}, id="kept worker"),
]


@pytest.mark.parametrize("settings", WORKERS)
def test_lightning_trains_and_validates(lightning, settings):
    model = lightning.Model()
    loader = DataLoader(Numbers(), 3, shuffle=True, device="cpu", **settings)
    for _ in range(2):  # Lightning stops the workers after each
        trainer = lightning.trainer(max_epochs=2)
        trainer.fit(model, loader, DataLoader(Numbers(4), device="cpu"))

    assert sorted(model.seen) == sorted([*range(10)] * 4)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("settings", WORKERS)
def test_lightning_makes_another_loader_to_predict(lightning, settings):
    trainer = lightning.trainer()
    loader = DataLoader(
        Numbers(), 3, shuffle=True, drop_last=True, device="cpu", pack=False, prefetch=2, **settings
    )
    batches = trainer.predict(lightning.Model(), loader)

    assert sorted(numbers(batches)) == list(range(10))  # none dropped, so it is another one
    other = trainer.predict_dataloaders
    assert type(other) is DataLoader
    assert other is not loader
    assert (other.device, other.pack, other.prefetch) == ("cpu", False, 2)
    assert other.num_workers == loader.num_workers


def test_lightning_puts_its_own_sampler_in_a_loader_to_overfit(lightning):
    model = lightning.Model()
    loader = DataLoader(Numbers(), 2, shuffle=True, device="cpu")
    lightning.trainer(max_epochs=2, overfit_batches=2).fit(model, loader)

    assert model.seen == [0, 1, 2, 3] * 2


def test_lightning_divides_a_loader_once(lightning):
    from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
    from lightning.pytorch.utilities.data import _update_dataloader

    loader = DataLoader(Numbers(), 2, shuffle=True, device="cpu")
    parts = []
    for rank in range(2):
        sampler = DistributedSamplerWrapper(loader.sampler, num_replicas=2, rank=rank)
        parts.append(numbers(_update_dataloader(loader, sampler)))
    assert {len(part) for part in parts} == {5}


def test_fabric_moves_nothing_twice(lightning):
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(DataLoader(Numbers(), 3, device="cpu"))

    assert numbers(loader) == list(range(10))


# ------------------------------------------------- accelerate


@pytest.fixture
def accelerate():
    module = pytest.importorskip("accelerate")
    yield module
    module.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("settings", WORKERS)
def test_accelerate_prepares_it(accelerate, settings):
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(Numbers(), 3, device="cpu", **settings))

    assert len(loader) == 4
    for _ in range(2):
        assert numbers(loader) == list(range(10))


def test_accelerate_shuffles_it(accelerate):
    accelerator = accelerate.Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(Numbers(), 3, shuffle=True, device="cpu"))

    first, second = numbers(loader), numbers(loader)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_accelerate_divides_it_once(accelerate):
    accelerate.Accelerator(cpu=True)
    parts = [
        numbers(
            accelerate.data_loader.prepare_data_loader(
                DataLoader(Numbers(12), 3, device="cpu"), num_processes=2, process_index=rank
            )
        )
        for rank in range(2)
    ]
    assert parts == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]


def test_accelerate_skips_batches_of_it(accelerate):
    loader = accelerate.skip_first_batches(DataLoader(Numbers(), 3, device="cpu"), 2)

    assert numbers(loader) == [6, 7, 8, 9]


# ------------------------------------------------- torchdata: going on in the middle of an epoch


class State:
    """Carries a loader's state beside its batch: an object that `to_device` does not look into."""

    def __init__(self, value):
        self.value = value


class WithState(NamedTuple):
    batch: torch.Tensor
    state: State


def with_state(loader):
    for batch in loader:
        yield WithState(batch, State(loader.state_dict()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_stateful_dataloader_goes_on_in_the_middle(workers, device, simulated_accelerator):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        settings = {"multiprocessing_context": "fork"} if workers else {}
        return torchdata.StatefulDataLoader(
            Numbers(), 2, shuffle=True, num_workers=workers, **settings
        )

    torch.manual_seed(0)
    everything = list(prefetch_to_device(with_state(loader()), device))
    # The loader itself is ahead of the batch that was handed out; the state beside it is not.
    state = everything[1].state.value
    other = loader()
    other.load_state_dict(state)

    rest = numbers(prefetch_to_device(other, device))
    assert rest == numbers(pair.batch for pair in everything[2:])
    assert len(rest) == 6


def test_stateful_dataloader_in_the_place_of_torchs_own(simulated_accelerator):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    loader = torchdata.StatefulDataLoader(Numbers(), 2)
    batches = list(prefetch_to_device(loader, "sim"))

    assert numbers(batches) == list(range(10))
    assert {batch.device.type for batch in batches} == {"sim"}
