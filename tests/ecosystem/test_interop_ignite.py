"""What docs/interop.md says of ignite and torchmetrics."""

import re

import pytest
import torch
from interop_page import assert_said, run_section
from torch import nn

from devicekit import DataLoader, Device, DeviceMismatchError, explain, guard, to_device

pytestmark = [pytest.mark.ecosystem]

SIM = "sim:1"


@pytest.fixture
def ignite():
    return pytest.importorskip("ignite.engine", reason="docs/interop.md shows ignite")


@pytest.fixture
def classification():
    return pytest.importorskip(
        "torchmetrics.classification", reason="docs/interop.md shows torchmetrics"
    )


def test_ignite_measures_the_same_on_the_cpu_and_on_an_accelerator(ignite, simulated_accelerator):
    names = run_section("ignite")
    accuracy = names["Accuracy"]
    results = []
    for device in ("cpu", SIM):
        model = to_device(names["model"], device)
        evaluator = ignite.create_supervised_evaluator(
            model, {"a": accuracy(device=device)}, device
        )
        results.append(evaluator.run(DataLoader(names["dataset"], 8, device=device)).metrics["a"])

    assert results[0] == results[1]


def test_a_guard_names_what_prepare_batch_left_behind(ignite, simulated_accelerator):
    names = run_section("ignite")
    trainer = ignite.create_supervised_trainer(
        names["model"],
        names["optimizer"],
        nn.functional.cross_entropy,
        device="sim:0",
        prepare_batch=lambda batch, device, non_blocking: batch,
    )
    with pytest.raises(DeviceMismatchError) as caught:
        trainer.run(DataLoader(names["dataset"], 8, device="cpu"))

    assert re.search(r"cpu\s+x\s+float32\[8, 8\]", str(caught.value))


def test_ignites_own_device_and_loader(machine, ignite):
    import ignite.distributed as idist

    assert idist.device().type == ("cuda" if machine == "cuda" else "cpu")
    dataset = run_section("ignite")["dataset"]
    assert type(idist.auto_dataloader(dataset, batch_size=4)) is torch.utils.data.DataLoader


def test_metrics_move_as_modules(classification, simulated_accelerator):
    scores, targets = torch.tensor([0.2, 0.7, 0.9]), torch.tensor([0, 1, 0])
    moved = to_device(classification.BinaryAUROC(), SIM)
    moved.update(scores.to(SIM), targets.to(SIM))
    plain = classification.BinaryAUROC().to(SIM)
    plain.update(scores.to(SIM), targets.to(SIM))

    assert moved.preds[0].device == Device(SIM)
    assert moved.compute() == plain.compute()
    assert to_device(moved, "cpu").preds[0].device.type == "cpu"
    assert moved.compute() == plain.compute().cpu()


def test_a_metric_knows_where_it_is(classification, simulated_accelerator):
    metric = to_device(classification.MulticlassAccuracy(num_classes=2), SIM)

    assert metric.device == Device(SIM)
    assert Device.of(metric) == "sim:1"


def test_a_metric_in_a_module_moves_with_it_and_one_in_a_list_does_not(
    classification, simulated_accelerator
):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.metric = classification.MulticlassAccuracy(num_classes=2)
            self.metrics = [classification.MulticlassAccuracy(num_classes=2)]

    model = to_device(Model(), SIM)
    assert model.metric.device == Device(SIM)
    assert model.metrics[0].device.type == "cpu"


def mix(metric):
    metric(torch.rand(4, 2, device=SIM), torch.randint(2, (4,), device=SIM))


def test_torchmetrics_says_what_to_do_itself(classification, simulated_accelerator):
    with pytest.raises(RuntimeError, match="Encountered different devices") as caught:
        mix(classification.MulticlassAccuracy(num_classes=2))
    assert_said(caught.value)


def test_explain_names_the_metric(classification, simulated_accelerator):
    try:
        mix(classification.MulticlassAccuracy(num_classes=2))
    except RuntimeError as error:
        text = explain(error)
    assert text is not None
    assert "metric" in text


def test_guard_names_the_metric(classification, simulated_accelerator):
    with pytest.raises(DeviceMismatchError, match="metric"):
        guard(mix)(classification.MulticlassAccuracy(num_classes=2))
