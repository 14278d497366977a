"""The programs of docs/examples run as a user runs them and do what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"

pytestmark = pytest.mark.slow


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the examples to its end, with what it prints."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )


def accuracy(output: str) -> float:
    """The percentage that a training example prints at its end."""
    found = re.search(r"test accuracy: ([\d.]+)%", output)
    assert found, output
    return float(found[1])


def test_training_falls_back_says_why_and_learns() -> None:
    result = run("train_digits.py", "--device", "cuda")
    assert accuracy(result.stdout) >= 97
    assert re.search(r"\d+ samples per second", result.stdout)
    warnings = re.findall(r"DeviceFallbackWarning: .*", result.stderr)
    if "device: cuda" not in result.stdout:
        assert len(warnings) == 1
        assert "'cuda' cannot be used here" in warnings[0]
        assert "Fix" in warnings[0]


def test_training_on_two_processes_shares_the_data() -> None:
    result = run(
        "-m", "torch.distributed.run", "--nproc-per-node=2", "train_ddp.py", "--device", "cpu"
    )
    assert accuracy(result.stdout) >= 97
    shares = re.findall(r"rank \d: (\d+) samples", result.stdout)
    # 1437 samples for training, ten epochs, two ranks: the last sample is padded with one more.
    assert shares == ["7190", "7190"]


def test_the_first_lesson_with_simulated_gpus() -> None:
    result = run("use_gpu.py", "--simulate")
    assert "2 found: sim:0 (Simulated accelerator), sim:1 (Simulated accelerator)" in result.stdout
    assert result.stdout.count("expected all tensors to be on the same device") == 2
    assert 'fix: on_cpu = on_cpu.to("sim:0")' in result.stdout


def test_the_first_lesson_on_this_machine() -> None:
    assert "5. A model and its inputs" in run("use_gpu.py").stdout
