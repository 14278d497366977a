"""What a training step costs on the simulated accelerator, next to the same step on the CPU.

    python benchmarks/simulate.py            # all models, about two minutes on one thread
    python benchmarks/simulate.py mlp lstm   # some

Each pair is measured alternately: a few steps on the CPU, a few on the device, many times over; the
figure is the median of the ratios. Times are CPU time of the one thread, which a busy machine
distorts less than the clock on the wall. The last columns are the CPU's step while the simulation
is active, under its own name and under CUDA's, over the same step without it, measured likewise.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from common import RESULTS, bars, write
from torch import nn

from devicekit.testing import simulate

Step = Callable[[], object]
Batch = tuple[torch.Tensor, torch.Tensor]


class Sequence(nn.Module):
    """An embedding, a recurrent layer or a Transformer, and a head."""

    def __init__(self, body: nn.Module, width: int, classes: int = 5) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.body = body
        self.head = nn.LazyLinear(classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.body(self.embed(tokens))
        return self.head((out[0] if isinstance(out, tuple) else out)[:, -1])


def mlp() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    return model, (torch.randn(32, 20), torch.randint(10, (32,)))


def cnn() -> tuple[nn.Module, Batch]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    return model, (torch.randn(8, 3, 16, 16), torch.randint(10, (8,)))


def transformer() -> tuple[nn.Module, Batch]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return Sequence(layer, 32), (torch.randint(50, (8, 16)), torch.randint(5, (8,)))


def lstm() -> tuple[nn.Module, Batch]:
    body = nn.LSTM(16, 32, batch_first=True)
    return Sequence(body, 16), (torch.randint(50, (8, 20)), torch.randint(5, (8,)))


def large() -> tuple[nn.Module, Batch]:
    """50 million parameters."""
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096),
        nn.GELU(), nn.Linear(4096, 2816), nn.GELU(), nn.Linear(2816, 10),
    )  # fmt: skip
    return model, (torch.randn(8, 1024), torch.randint(10, (8,)))


MODELS = {f.__name__: f for f in (mlp, cnn, transformer, lstm, large)}
LIMITS = {"mlp": 6, "cnn": 6, "transformer": 6, "lstm": 15, "large": 2}
CPU_LIMIT = 1.05


def train(make: Callable[[], tuple[nn.Module, Batch]], device: str) -> Step:
    """Return one step of training with SGD."""
    torch.manual_seed(0)
    model, (x, y) = make()
    model(x)  # the lazy layers
    model.to(device)
    x, y = x.to(device), y.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    return step


def seconds(step: Step, repeat: int) -> float:
    start = time.thread_time()
    for _ in range(repeat):
        step()
    return (time.thread_time() - start) / repeat


def paired(one: Callable[[], float], other: Callable[[], float], rounds: int) -> dict[str, float]:
    """Return the medians of two measurements taken in turn, and of `other / one`."""
    pairs = []
    for i in range(rounds):
        # First one, then the other goes first, so that a drift of the clock cancels.
        if i % 2:
            a, b = one(), other()
        else:
            b, a = other(), one()
        pairs.append((a, b))
    return {
        "cpu_us": round(1e6 * statistics.median(a for a, _ in pairs), 1),
        "other_us": round(1e6 * statistics.median(b for _, b in pairs), 1),
        "ratio": round(statistics.median(b / a for a, b in pairs), 3),
    }


def measure(name: str) -> dict[str, dict[str, float]]:
    make = MODELS[name]
    cpu = train(make, "cpu")
    repeat = max(1, round(0.02 / seconds(cpu, 3)))
    rounds = 9 if name == "large" else 41
    with simulate():
        sim = train(make, "sim")
        seconds(sim, 3)
        device = paired(lambda: seconds(cpu, repeat), lambda: seconds(sim, repeat), rounds)

    return {
        "device": device,
        "cpu beside sim": paired(lambda: seconds(cpu, repeat), beside("sim", cpu, repeat), rounds),
        "cpu beside cuda": paired(
            lambda: seconds(cpu, repeat), beside("cuda", cpu, repeat), rounds
        ),
    }


def beside(name: str, step: Step, repeat: int) -> Callable[[], float]:
    """What times a step on the CPU while a simulation of this name is active."""

    def active() -> float:
        with simulate(name):
            seconds(step, 3)  # the interpreter looks up what is patched anew
            return seconds(step, repeat)

    return active


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """The figures as Markdown."""
    lines = [
        "| model | step on the CPU | on the simulation | ratio | goal | "
        f"CPU beside `sim` | CPU beside `cuda` (goal {CPU_LIMIT}) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        device = result["device"]
        lines.append(
            f"| {name} | {device['cpu_us']:.0f} µs | {device['other_us']:.0f} µs | "
            f"{device['ratio']:.2f} | {LIMITS[name]} | {result['cpu beside sim']['ratio']:.3f} | "
            f"{result['cpu beside cuda']['ratio']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    results = {}
    for name in names or MODELS:
        results[name] = measure(name)
        print(name, {what: found["ratio"] for what, found in results[name].items()}, flush=True)
    print(table(results))
    if names:
        return
    write("simulate", {"models": results})
    (RESULTS / "simulate.md").write_text(table(results))
    panels = {
        "on the simulation": {n: result["device"]["ratio"] for n, result in results.items()},
        "on the CPU beside it": {
            n: result["cpu beside cuda"]["ratio"] for n, result in results.items()
        },
    }
    bars("simulate", panels, "training step, times the same without the simulation", line=1)


if __name__ == "__main__":
    main(sys.argv[1:])
