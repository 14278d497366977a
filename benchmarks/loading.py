"""What a batch costs on its way from a worker; how soon the first one is there; how much overlaps.

    python benchmarks/loading.py             all, into results/loading.json and .md
    python benchmarks/loading.py --quick     a few seconds, to see that it runs
    python benchmarks/loading.py --again "dict of 8" starting     these once more

Transport is paired: in each round every loader runs one epoch, in a new order. Peers that are not
installed are left out.
"""

import argparse
import gc
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, write
from torch.utils.data import Dataset, default_collate

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_prefetch import SETTINGS, efficiency  # noqa: E402

from devicekit import DataLoader  # noqa: E402
from devicekit.prefetch import run_schedule  # noqa: E402

TorchLoader = torch.utils.data.DataLoader


class Repeats(Dataset[Any]):
    """Gives the same few samples again and again, so that making them costs nothing."""

    def __init__(self, make: Callable[[int], Any], batches: int, batch_size: int) -> None:
        self.samples = [make(index) for index in range(batch_size)]
        self.length = batches * batch_size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.samples[index % len(self.samples)]


def dict_of(count: int, size: int) -> Callable[[int], Any]:
    return lambda index: {f"key{each}": torch.full((size,), float(index)) for each in range(count)}


def image(index: int) -> torch.Tensor:
    return torch.full((3, 224, 224), float(index))


# name: one sample, samples in a batch (None: a sample is a batch), batches in an epoch
BATCHES: dict[str, tuple[Callable[[int], Any], int | None, int]] = {
    "one tensor, 2 KB": (lambda index: torch.full((16,), float(index)), 32, 60),
    "one tensor, 1 MB": (lambda index: torch.full((8192,), float(index)), 32, 40),
    "images, 19 MB": (image, 32, 12),
    "image and label": (lambda index: (image(index), index), 32, 12),
    "dict of 8": (dict_of(8, 128), 32, 30),
    "dict of 64": (dict_of(64, 16), 32, 12),
    "list of 1000": (lambda index: many(index), None, 6),
    "list of 1000, collated from 4": (lambda index: many(index), 4, 6),
}


def many(index: int) -> list[torch.Tensor]:
    return [torch.full((4,), float(index)) for _ in range(1000)]


def loaders(dataset: Dataset[Any], batch_size: int | None) -> dict[str, Iterable[Any]]:
    settings: dict[str, Any] = {"batch_size": batch_size, "num_workers": 1}
    found: dict[str, Iterable[Any]] = {
        "torch": TorchLoader(dataset, **settings),
        "devicekit": DataLoader(dataset, device="cpu", **settings),
        "devicekit, pack=False": DataLoader(dataset, device="cpu", pack=False, **settings),
    }
    sample = dataset[0]
    if find_spec("accelerate"):
        from accelerate import Accelerator

        found["accelerate"] = Accelerator(cpu=True).prepare(TorchLoader(dataset, **settings))
    if find_spec("torch_geometric"):
        from torch_geometric.loader import PrefetchLoader

        found["PyG PrefetchLoader"] = PrefetchLoader(TorchLoader(dataset, **settings), "cpu")
    if find_spec("tensordict") and isinstance(sample, dict):
        found["tensordict.consolidate"] = TorchLoader(dataset, collate_fn=consolidated, **settings)
    return found


def consolidated(samples: list[Any]) -> Any:
    from tensordict import TensorDict

    return TensorDict(default_collate(samples), batch_size=[len(samples)]).consolidate()


def seconds_per_batch(loader: Iterable[Any]) -> float:
    batches: Iterator[Any] = iter(loader)
    next(batches)  # the worker is there
    start = time.perf_counter()
    count = sum(1 for _ in batches)
    return (time.perf_counter() - start) / count


def transport(rounds: int, only: list[str]) -> dict[str, Any]:
    results = {}
    for name, (make, batch_size, count) in BATCHES.items():
        if only and name not in only:
            continue
        competitors = loaders(Repeats(make, count, batch_size or 1), batch_size)
        times: dict[str, list[float]] = {each: [] for each in competitors}
        for _ in range(rounds):
            order = list(competitors)
            random.shuffle(order)
            for each in order:
                gc.collect()
                times[each].append(seconds_per_batch(competitors[each]))
        results[name] = {
            each: {
                "ms": min(found) * 1e3,
                "times_torch": min(times["torch"]) / min(found),
                "median_times_torch": statistics.median(
                    base / own for base, own in zip(times["torch"], found, strict=True)
                ),
                "spread": statistics.median(found) / min(found),
            }
            for each, found in times.items()
        }
        print(name, {each: round(row["ms"], 2) for each, row in results[name].items()}, flush=True)
    return results


START = """
    import multiprocessing, statistics, sys, time
    import torch

    def timed(make):
        start = time.perf_counter()
        loader = make()
        next(iter(loader))
        return (time.perf_counter() - start) * 1e3

    if __name__ == "__main__":
        from torch.utils.data import DataLoader as TorchLoader, TensorDataset
        from devicekit import DataLoader
        kind, method = sys.argv[1:]
        data = TensorDataset(torch.arange(64.0))
        settings = dict(batch_size=4, num_workers=2, multiprocessing_context=method)
        if kind == "devicekit":
            settings["device"] = "cpu"
        Loader = DataLoader if kind == "devicekit" else TorchLoader
        quick = method == "fork" or (kind, method) == ("devicekit", "forkserver")
        times = [timed(lambda: Loader(data, **settings)) for _ in range(6 if quick else 2)]
        kept = Loader(data, persistent_workers=True, **settings)
        list(kept)
        print(times[0], min(times[1:]), min(timed(lambda: kept) for _ in range(5)))
"""


def starting(rounds: int) -> dict[str, Any]:
    """Milliseconds to the first batch of two workers, each in a process of its own; paired."""
    script = ROOT / "benchmarks" / "_start.py"
    script.write_text(textwrap.dedent(START))
    methods = multiprocessing.get_all_start_methods()
    order = [(kind, method) for kind in ("torch", "devicekit") for method in methods]
    runs: dict[str, list[list[float]]] = {f"{kind}, {method}": [] for kind, method in order}
    try:
        for _ in range(rounds):
            random.shuffle(order)
            for kind, method in order:
                values = _start(script, kind, method).split()
                runs[f"{kind}, {method}"].append([float(value) for value in values])
                print(kind, method, values, flush=True)
    finally:
        script.unlink()
    results: dict[str, Any] = {
        name: dict(zip(("first", "second", "kept workers"), map(min, *found), strict=True))
        for name, found in runs.items()
    }
    pairs = zip(runs["devicekit, forkserver"], runs["devicekit, fork"], strict=True)
    results["forkserver's second start over fork's, median"] = statistics.median(
        server[1] / fork[1] for server, fork in pairs
    )
    return results


def _start(script: Path, kind: str, method: str) -> str:
    return subprocess.run(
        [sys.executable, str(script), kind, method],
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def overlap() -> dict[str, Any]:
    """The schedule in virtual time: no GPU, no clock."""
    results = {}
    for name, setting in SETTINGS.items():
        reached, machine = efficiency(run_schedule, setting)
        results[name] = {
            "efficiency": reached,
            "races": len(machine.races),
            "batches_on_the_device": len(machine.blocks),
        }
    return results


def table(results: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for row in results["transport"].values() for name in row))
    lines = ["## Transport: one worker, ms per batch (times as fast as torch, paired median)", ""]
    lines += ["| batch | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for batch, row in results["transport"].items():
        cells = [
            f"{row[name]['ms']:.2f} ({row[name]['median_times_torch']:.2f})" if name in row else "-"
            for name in names
        ]
        lines.append(f"| {batch} | " + " | ".join(cells) + " |")
    lines += ["", "## Start-up: two workers, ms to the first batch", ""]
    lines += ["| loader, start method | first | second | kept workers |", "|---|---|---|---|"]
    for name, row in results["starting"].items():
        if isinstance(row, dict):
            lines.append(
                f"| {name} | " + " | ".join(f"{value:.0f}" for value in row.values()) + " |"
            )
    lines += ["", "## Overlap, in the virtual-time model (not a GPU)", ""]
    lines += ["| setting | efficiency | races | batches on the device |", "|---|---|---|---|"]
    for name, row in results["overlap"].items():
        cells = (f"{row['efficiency']:.3f}", str(row["races"]), str(row["batches_on_the_device"]))
        lines.append(" | ".join([f"| {name}", *cells]) + " |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    batches = list(results["transport"])
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(name for row in results["transport"].values() for name in row))
    for offset, name in enumerate(names):
        places = [
            (place + (offset - len(names) / 2) * 0.13, row[name]["ms"])
            for place, row in enumerate(results["transport"].values())
            if name in row
        ]
        axes.bar([x for x, _ in places], [y for _, y in places], 0.13, label=name)
    axes.set(yscale="log", ylabel="ms per batch, one worker")
    axes.set_xticks(range(len(batches)), batches, fontsize=8)
    axes.legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--again", nargs="*", default=[], metavar="PART")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if arguments.quick:
        quickly = {"transport": transport(2, ["one tensor, 2 KB", "dict of 8"]), "starting": {}}
        print(table({**quickly, "overlap": overlap()}))
        return
    if arguments.again:
        results = json.loads((RESULTS / "loading.json").read_text())
        again = [name for name in arguments.again if name in BATCHES]
        if again:
            results["transport"] |= transport(5, again)
        if "starting" in arguments.again:
            results["starting"] = starting(3)
    else:
        results = {"transport": transport(7, []), "starting": starting(3), "overlap": overlap()}
    print(table(results))
    measured = {name: results[name] for name in ("transport", "starting", "overlap")}
    measured["load_average"] = os.getloadavg()
    write("loading", measured, "accelerate", "tensordict", "torch_geometric")
    (RESULTS / "loading.md").write_text(table(results))
    if find_spec("matplotlib"):
        plot(results, RESULTS / "loading.svg")


if __name__ == "__main__":
    main()
