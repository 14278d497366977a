"""Runs all benchmarks one after the other, or checks the most telling ratios.

    python benchmarks/run.py            # all; results, tables and plots go to benchmarks/results/
    python benchmarks/run.py --quick    # under three minutes: ratios against their floors, no files

The quick check fails when a ratio stays above its goal, with slack, in three tries; where the
machine is too noisy to tell it says so and passes.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from common import paired
from torch import nn
from tqdm import tqdm

from devicekit import DataLoader, guard, to_device

SCRIPTS = (
    "containers.py",
    "to_device.py",
    "guard.py",
    "loading.py",
    "simulate.py",
    "opinfo.py",
)
HERE = Path(__file__).parent
SLACK = 1.3
NOISY = 2.0


def checks() -> dict[str, tuple[Callable[[], object], Callable[[], object], float]]:
    """For each check: the floor, what is measured, and the goal for their ratio."""
    meta, cpu = torch.device("meta"), torch.device("cpu")
    flat = {name: torch.ones(4) for name in "abcdefgh"}
    long = [torch.ones(4) for _ in range(10_000)]
    tensors = list(flat.values())
    model, x = nn.Linear(64, 64), torch.ones(8, 64)
    many = [[torch.full((4,), float(i)) for i in range(1000)]] * 3

    class Guarded(nn.Linear):
        @guard
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, self.weight, self.bias)

    guarded = Guarded(64, 64)
    return {
        "to_device, dict of 8, to another device": (
            lambda: [t.to(meta) for t in tensors],
            lambda: to_device(flat, meta),
            1.25,
        ),
        "to_device, dict of 8, nothing to move": (
            lambda: [t.to(cpu) for t in tensors],
            lambda: to_device(flat, cpu),
            0.6,
        ),
        "to_device, list of 10 000, to another device": (
            lambda: [t.to(meta) for t in long],
            lambda: to_device(long, meta),
            1.25,
        ),
        "guard, a small linear layer": (lambda: model(x), lambda: guarded(x), 1.2),
        "DataLoader, a list of 1000 from a worker": (
            lambda: list(torch.utils.data.DataLoader(many, batch_size=None, num_workers=1)),
            lambda: list(DataLoader(many, batch_size=None, num_workers=1, device="cpu")),
            0.2,  # with the start of the worker, which is most of it
        ),
    }


def quick() -> int:
    """Prints a line for each check and returns 1 if one failed."""
    torch.set_num_threads(1)
    failed = False
    for name, (floor, own, goal) in tqdm(checks().items(), unit="check", disable=None):
        for _ in range(3):
            rounds = 3 if name.startswith("DataLoader") else 25
            found = paired({"floor": floor, "own": own}, rounds=rounds, seconds=0.01)
            ratio, spread = found["own"]["ratio"], found["floor"]["spread"]
            if ratio <= goal * SLACK or spread > NOISY:
                break
        verdict = (
            "ok" if ratio <= goal * SLACK else "too noisy to tell" if spread > NOISY else "SLOW"
        )
        failed = failed or verdict == "SLOW"
        print(f"{verdict}: {name}: {ratio:.2f} of the floor (goal {goal}, spread {spread:.2f})")
    return int(failed)


def main() -> int:
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only check some ratios")
    if parser.parse_args().quick:
        return quick()
    failed = []
    for script in tqdm(SCRIPTS, unit="benchmark"):
        if subprocess.run([sys.executable, HERE / script], cwd=HERE.parent, check=False).returncode:
            failed.append(script)
    if failed:
        print("failed:", ", ".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
