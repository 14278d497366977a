"""What a batch costs on its way from a worker; how soon the first one is there; how much overlaps.

    python benchmarks/loading.py             all, into results/loading.json, .md and .svg
    python benchmarks/loading.py --quick     less than a minute, no files: to see that it runs

Transport is paired: in each round every loader runs one epoch, in a new order. The second start of
the fork server is paired with fork's: one process starts them in turn. Peers that cannot be
imported are left out.
"""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, bars, write
from torch.utils.data import Dataset, default_collate

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from test_prefetch import SETTINGS, efficiency  # noqa: E402

from devicekit import DataLoader  # noqa: E402
from devicekit.prefetch import run_schedule  # noqa: E402

TorchLoader = torch.utils.data.DataLoader
NORMALISED = "uint8 image and label, normalised"
"""The batches that timm's loader takes. It normalises them, so here the others' are as well."""


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


def bytes_and_label(index: int) -> tuple[torch.Tensor, int]:
    return torch.full((3, 224, 224), index, dtype=torch.uint8), index


# name: one sample, samples in a batch (None: a sample is a batch), batches in an epoch
BATCHES: dict[str, tuple[Callable[[int], Any], int | None, int]] = {
    "one tensor, 2 KB": (lambda index: torch.full((16,), float(index)), 32, 60),
    "one tensor, 1 MB": (lambda index: torch.full((8192,), float(index)), 32, 40),
    "images, 19 MB": (image, 32, 12),
    "image and label": (lambda index: (image(index), index), 32, 12),
    NORMALISED: (bytes_and_label, 32, 12),
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
    if isinstance(sample, tuple) and sample[0].dtype is torch.uint8:
        found = {name: Normalised(loader) for name, loader in found.items()}
        with contextlib.suppress(ImportError, RuntimeError):  # a torchvision for another torch
            from timm.data.loader import PrefetchLoader

            loader = TorchLoader(dataset, **settings)
            found["timm PrefetchLoader"] = PrefetchLoader(loader, device=torch.device("cpu"))
    return found


class Normalised:
    """Normalises the images of a loader as timm's does."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.mean = torch.tensor([0.485, 0.456, 0.406]).mul_(255).view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225]).mul_(255).view(1, 3, 1, 1)

    def __iter__(self) -> Iterator[Any]:
        for images, labels in self.loader:
            yield images.to(torch.float32).sub_(self.mean).div_(self.std), labels


def consolidated(samples: list[Any]) -> Any:
    from tensordict import TensorDict

    return TensorDict(default_collate(samples), batch_size=[len(samples)]).consolidate()


def seconds_per_batch(loader: Iterable[Any]) -> float:
    # Without the first, which waits for the worker, and the last: where a loader is one batch ahead
    # of what it hands out, that one is there already.
    first, *between, end, _ = [time.perf_counter() for _ in loader]
    return (end - first) / (len(between) + 1)


def transport(rounds: int, names: list[str]) -> dict[str, Any]:
    results = {}
    for name in names:
        make, batch_size, count = BATCHES[name]
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
    import json, sys, time
    import torch

    def timed(make):
        start = time.perf_counter()
        batches = iter(make())
        next(batches)
        return (time.perf_counter() - start) * 1e3  # the workers stop after that

    if __name__ == "__main__":
        from torch.utils.data import DataLoader as TorchLoader, TensorDataset
        from devicekit import DataLoader
        kind, *methods = sys.argv[1:]
        data = TensorDataset(torch.arange(64.0))
        Loader = DataLoader if kind == "devicekit" else TorchLoader
        place = dict(device="cpu") if kind == "devicekit" else {}

        def make(method, **more):
            more |= dict(batch_size=4, num_workers=2, multiprocessing_context=method)
            return Loader(data, **more, **place)

        def start(method):
            return timed(lambda: make(method))

        first = [start(method) for method in methods]
        slow = "spawn" in methods or (kind, methods) == ("torch", ["forkserver"])
        later = [[start(method) for method in methods] for _ in range(1 if slow else 5)]
        kept = [make(method, persistent_workers=True) for method in methods]
        kept_times = [min(timed(lambda: each) for _ in range(6)) for each in kept]
        print(json.dumps([first, later, kept_times]))
"""


SERVER_OVER_FORK = "forkserver's second start over fork's"


def starting(rounds: int, methods: list[str]) -> dict[str, Any]:
    """Milliseconds to the first batch of two workers; each start method in its own process.

    One more process starts devicekit's workers by fork and by the fork server in turn.
    """
    order = [(kind, method) for kind in ("torch", "devicekit") for method in methods]
    runs: dict[str, list[tuple[float, ...]]] = {f"{kind}, {method}": [] for kind, method in order}
    ratios = []
    for _ in range(rounds):
        random.shuffle(order)
        for kind, method in order:
            [first], later, [kept] = started(kind, method)
            runs[f"{kind}, {method}"].append((first, min(x for [x] in later), kept))
            print(kind, method, runs[f"{kind}, {method}"][-1], flush=True)
        _, later, _ = started("devicekit", "fork", "forkserver")
        ratios += [server / fork for fork, server in later]
        print("devicekit, fork and forkserver in turn", later, flush=True)
    kinds = ("first", "second", "kept workers")
    results: dict[str, Any] = {
        name: dict(zip(kinds, map(min, zip(*found, strict=True)), strict=True))
        for name, found in runs.items()
    }
    results[SERVER_OVER_FORK] = {
        "median": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "pairs": len(ratios),
    }
    return results


def started(kind: str, *methods: str) -> Any:
    """What START prints: by method the first start, rounds of later ones, and kept workers."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(textwrap.dedent(START))
        script.flush()
        done = subprocess.run(
            [sys.executable, script.name, kind, *methods],
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
    return json.loads(done.stdout)


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
    before, after = results["load_before_and_after"]
    lines = [
        f"The machine's load was {before:.1f} before and {after:.1f} after, on {os.cpu_count()} "
        "cores. Machine and versions are in `loading.json`.",
        "",
    ]
    lines += ["## Transport: one worker, ms per batch (times as fast as torch, paired median)", ""]
    lines += ["| batch | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for batch, row in results["transport"].items():
        cells = [
            f"{row[name]['ms']:.2f} ({row[name]['median_times_torch']:.2f})" if name in row else "-"
            for name in names
        ]
        lines.append(f"| {batch} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "timm's loader normalises; in its row all others' batches are normalised as well.",
    ]
    lines += ["", "## Start-up: two workers, ms to the first batch", ""]
    lines += ["| loader, start method | first | second | kept workers |", "|---|---|---|---|"]
    starts = dict(results["starting"])
    paired = starts.pop(SERVER_OVER_FORK)
    for name, row in starts.items():
        lines.append(f"| {name} | " + " | ".join(f"{value:.0f}" for value in row.values()) + " |")
    lines += [
        "",
        f"devicekit, {SERVER_OVER_FORK}: {paired['median']:.2f} times, the median of "
        f"{paired['pairs']} pairs ({paired['least']:.2f} to {paired['most']:.2f}).",
    ]
    lines += ["", "## Overlap, in the virtual-time model (not a GPU)", ""]
    lines += ["| setting | efficiency | races | batches on the device |", "|---|---|---|---|"]
    for name, row in results["overlap"].items():
        cells = (f"{row['efficiency']:.3f}", str(row["races"]), str(row["batches_on_the_device"]))
        lines.append(" | ".join([f"| {name}", *cells]) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    load = [os.getloadavg()[0]]
    if arguments.quick:
        found = transport(2, ["one tensor, 2 KB", "dict of 8", NORMALISED]), starting(1, ["fork"])
    else:
        found = transport(7, list(BATCHES)), starting(3, multiprocessing.get_all_start_methods())
    load.append(os.getloadavg()[0])
    results = {
        "load_before_and_after": load,
        "transport": found[0],
        "starting": found[1],
        "overlap": overlap(),
    }
    print(table(results))
    if arguments.quick:
        return
    write("loading", results, "accelerate", "tensordict", "timm", "torch_geometric", "torchvision")
    (RESULTS / "loading.md").write_text(table(results))
    panels = {
        batch: {name: found["ms"] for name, found in row.items()}
        for batch, row in results["transport"].items()
    }
    bars("loading", panels, "ms per batch, one worker")


if __name__ == "__main__":
    main()
