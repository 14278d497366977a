"""What all benchmarks share: paired timing, the facts of the machine, and where results go."""

import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def paired(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int = 15, seconds: float = 0.02
) -> dict[str, dict[str, float]]:
    """Times all candidates in one process, in a new order each round.

    Args:
        candidates: Functions by name; the first one is what the others are compared with.
        rounds: How often each is timed.
        seconds: About how long one timing lasts; quick functions are repeated to fill it.

    Returns:
        For each name `seconds` (of one call, the least of all rounds), `ratio` (to the first, of
        the least), `median_ratio` (the median of the ratios of each round), and `spread` (its own
        median over its least: above 2 the machine was too noisy to say anything).
    """
    repeats = {name: _repeats(call, seconds) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        order = list(candidates)
        random.shuffle(order)
        for name in order:
            times[name].append(_time(candidates[name], repeats[name]))
    first = next(iter(candidates))
    return {
        name: {
            "seconds": min(found),
            "ratio": min(found) / min(times[first]),
            "median_ratio": statistics.median(
                own / base for own, base in zip(found, times[first], strict=True)
            ),
            "spread": statistics.median(found) / min(found),
        }
        for name, found in times.items()
    }


def facts(*packages: str) -> dict[str, Any]:
    """What a reader must know to judge a result: machine, versions, commit, command."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
        "commit": _commit(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "accelerator": _accelerator(),
            "threads": torch.get_num_threads(),
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: _version(name) for name in packages},
        },
    }


def write(name: str, results: Mapping[str, Any], *packages: str) -> Path:
    """Files results with their facts as `results/<name>.json` and returns the path."""
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**facts(*packages), **results}, indent=1) + "\n")
    return path


def bars(
    name: str, panels: Mapping[str, Mapping[str, float]], label: str, line: float | None = None
) -> None:
    """Draws horizontal bars as `results/<name>.svg`, a panel for each case.

    Args:
        name: Of the file.
        panels: By the title of a panel, the values by what they belong to.
        label: What the values are, with their unit.
        line: Where to draw a line that says "as much as the floor".
    """
    from matplotlib.figure import Figure

    height = -(-len(panels) // 2)
    figure = Figure(figsize=(9, 2.3 * height), layout="constrained")
    grid = figure.subplots(height, 2, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    for axes, (title, values) in zip(grid.flat, panels.items(), strict=False):
        ours = {"devicekit"} & set(values) or set(values)
        colours = ["tab:blue" if who in ours else "silver" for who in values]
        drawn = axes.barh(list(values), list(values.values()), color=colours)
        texts = [f"{value:,.{2 if value < 100 else 0}f}" for value in values.values()]
        axes.bar_label(drawn, texts, padding=2, fontsize=8)
        if line is not None:
            axes.axvline(line, color="black", linewidth=0.8)
        axes.invert_yaxis()
        axes.margins(x=0.14)
        axes.set_title(title, fontsize=10)
        axes.tick_params(labelsize=8)
    figure.supxlabel(label, fontsize=9)
    figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})


def _repeats(call: Callable[[], object], seconds: float) -> int:
    call()
    return max(1, int(seconds / max(_time(call, 1), 1e-7)))


def _time(call: Callable[[], object], repeats: int) -> float:
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats
    finally:
        if enabled:
            gc.enable()


def _commit() -> str:
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=False,
    )
    return git.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def _accelerator() -> str | None:
    if not torch.accelerator.is_available():
        return None
    device = torch.accelerator.current_accelerator()
    name = getattr(torch.get_device_module(device), "get_device_name", lambda: str(device))
    return str(name())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
