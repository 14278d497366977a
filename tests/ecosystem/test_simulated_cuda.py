"""Trainers of other libraries on `simulate("cuda")`, unmodified: they find and use a GPU."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devicekit.testing import Simulation, simulate

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # the peers' own
]


@pytest.fixture(params=[1, 2], ids=["one GPU", "two GPUs"])
def simulation(
    request: pytest.FixtureRequest, accelerate_chooses_anew: None
) -> Iterator[Simulation]:
    with simulate("cuda", count=request.param) as running:
        yield running


def data() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 2, (16,))), batch_size=4)


def test_accelerate(simulation: Simulation) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(mixed_precision="fp16")
    net = nn.Linear(4, 2)
    net, optimizer, batches = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), data())
    for x, y in batches:
        assert x.is_cuda
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    assert loss.isfinite()
    assert net.weight.is_cuda


def test_lightning(simulation: Simulation, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    seen = []

    class Net(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def training_step(self, batch, index):
            x, y = batch
            seen.append((x.device, self.layer.weight.device))
            return nn.functional.cross_entropy(self.layer(x), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    trainer = lightning.Trainer(
        accelerator="gpu",
        devices=1,
        precision="16-mixed",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(Net(), data())
    assert set(seen) == {(torch.device("cuda:0"), torch.device("cuda:0"))}


def test_transformers_trainer(simulation: Simulation, tmp_path: Path) -> None:
    """With two GPUs it wraps the model in `DataParallel`."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=30,
    )
    net = transformers.BertForSequenceClassification(config)
    samples = [
        {"input_ids": torch.randint(0, 30, (5,)), "labels": torch.tensor(i % 2)} for i in range(8)
    ]
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=2,
        num_train_epochs=1,
        fp16=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(net, arguments, train_dataset=samples)
    assert trainer.args.n_gpu == len(simulation.devices)
    result = trainer.train()
    assert result.training_loss > 0
    assert {p.device for p in net.parameters()} == {torch.device("cuda:0")}
