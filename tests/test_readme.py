"""The error texts and figures that the README shows are those that appear."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from devicekit import DeviceMismatchError
from devicekit.testing import Simulation

README = (Path(__file__).parents[1] / "README.md").read_text()

PROGRAM = """
    import torch
    from torch import nn
    from devicekit import guard

    class Trainer:
        def __init__(self, model):
            self.model = model
            self.loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0]))

        # The weight stays on the CPU, whatever the model is moved to.
        @guard
        def step(self, x, y):
            return self.loss(self.model(x), y)

    trainer = Trainer(nn.Linear(8, 2).cuda())
    x, y = torch.rand(4, 8).cuda(), torch.randint(2, (4,)).cuda()
"""


def test_the_error_before_and_after(
    simulated_cuda: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    trainer, x, y = names["trainer"], names["x"], names["y"]

    with pytest.raises(RuntimeError) as before:
        trainer.loss(trainer.model(x), y)
    with pytest.raises(DeviceMismatchError) as after:
        trainer.step(x, y)

    blocks = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert blocks[0] == f"RuntimeError: {str(before.value).splitlines()[0]}\n"
    text = str(after.value).replace(str(path), "train.py")
    assert blocks[1] == f"devicekit.DeviceMismatchError: {text}\n"


def test_the_table_of_containers_is_the_one_that_was_measured() -> None:
    results = Path(__file__).parents[1] / "benchmarks" / "results" / "containers.json"
    cases = json.loads(results.read_text())["cases"]
    for row, mover in {
        "devicekit": "devicekit",
        "Lightning `move_data_to_device`": "Lightning",
        "accelerate `send_to_device`": "accelerate",
        "ignite `convert_tensor`": "ignite",
        "optree, torch pytree": "optree",
        "fastai `to_device`": "fastai",
    }.items():
        answers = list(cases[mover].values())
        outcomes = ("right", "left behind", "changed", "raised")
        counts = " | ".join(str(answers.count(outcome)) for outcome in outcomes)
        assert f"| {row} | {counts} |" in README
    assert f"of {len(cases['devicekit'])} containers" in README
    assert cases["optree"] == cases["torch pytree"]
