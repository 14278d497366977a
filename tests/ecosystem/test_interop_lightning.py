"""What docs/interop.md says of Lightning."""

import re
from dataclasses import dataclass

import pytest
import torch
from interop_page import assert_said, run_section

from devicekit import DataLoader, DeviceMismatchError, to_device

pl = pytest.importorskip("lightning.pytorch", reason="docs/interop.md shows lightning")

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
]

QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_epochs": 1,
}


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


def test_its_own_hook_refuses_a_frozen_dataclass_and_to_device_does_not(simulated_accelerator):
    from lightning.fabric.utilities import move_data_to_device

    batch = Frozen(torch.rand(2))
    with pytest.raises(Exception, match="frozen dataclass"):
        move_data_to_device(batch, torch.device("sim:0"))

    assert to_device(batch, "sim:0").x.device == torch.device("sim:0")


def test_the_fixed_list_of_accelerators(simulated_accelerator):
    with pytest.raises(ValueError, match="invalid accelerator name") as caught:
        pl.Trainer(accelerator="sim", **QUIET)
    problem, _, names = str(caught.value).partition(" Available names are: ")
    assert_said(problem)
    assert sorted(names.rstrip(".").split(", ")) == ["auto", "cpu", "cuda", "mps", "tpu"]


@pytest.mark.parametrize(
    ("settings", "device"),
    [
        ({"accelerator": "gpu", "devices": 1}, "cuda:0"),
        ({"accelerator": "cuda", "devices": 1}, "cuda:0"),
        ({"accelerator": "auto", "devices": [1]}, "cuda:1"),
    ],
)
def test_on_simulated_cuda(simulated_cuda, settings, device):
    names = run_section("Lightning")
    model, dataset = names["LitNet"](), names["dataset"]
    trainer = pl.Trainer(**settings, **QUIET)
    loader = DataLoader(dataset, batch_size=8, device=trainer.strategy.root_device)
    seen = []
    model.on_train_batch_end = lambda outputs, batch, batch_idx: seen.append(
        {part.device for part in batch}
    )
    trainer.fit(model, loader)

    assert seen == [{torch.device(device)}] * 4


def test_a_guard_names_the_batch_that_a_hook_left_behind(simulated_cuda):
    names = run_section("Lightning")

    class Forgetful(names["LitNet"]):
        def transfer_batch_to_device(self, batch, device, dataloader_idx):
            return batch

    trainer = pl.Trainer(accelerator="gpu", devices=1, **QUIET)
    loader = DataLoader(names["dataset"], batch_size=8, device="cpu")
    with pytest.raises(DeviceMismatchError, match="training_step") as caught:
        trainer.fit(Forgetful(), loader)

    assert re.search(r"cuda:0\s+self\s+Forgetful: 2 parameters", str(caught.value))
    assert re.search(r"cpu\s+batch\[0\]\s+float32\[8, 8\]", str(caught.value))
