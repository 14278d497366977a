"""What moving nested data costs: devicekit, its peers, and the floor of bare `tensor.to` calls.

    OMP_NUM_THREADS=1 python benchmarks/to_device.py

All candidates run in one process, in a new order each round; the numbers are least over least. The
other device is `meta`, so a call costs what torch and Python cost, and no copy hides it: on a GPU
every ratio is nearer to 1. A peer that raises, or leaves a tensor behind, is marked.
"""

import dataclasses
import importlib
import os
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import bars, paired, write

from devicekit import find_tensors, to_device

META, CPU = torch.device("meta"), torch.device("cpu")
PEERS = ("accelerate", "lightning", "pytorch-ignite", "optree", "tensordict", "fastai")

Pair = namedtuple("Pair", "a b c d")


@dataclasses.dataclass
class Record:
    a: Any
    b: Any
    c: Any
    d: Any


def tensor() -> torch.Tensor:
    return torch.ones(3)


def sample() -> dict[str, Any]:
    return {
        "x": tensor(),
        "y": (tensor(), tensor()),
        "pair": Pair(tensor(), tensor(), 3, "s"),
        "record": Record(tensor(), tensor(), None, "n"),
        "id": "abc",
        "n": 3,
    }


def deep(levels: int) -> Any:
    data: Any = tensor()
    for _ in range(levels):
        data = [data]
    return data


DATA: dict[str, Any] = {
    "dict of 4": {f"k{i}": tensor() for i in range(4)},
    "dict of 8": {f"k{i}": tensor() for i in range(8)},
    "64 leaves": [sample() for _ in range(8)] + [{"l": [tensor(), tensor()]} for _ in range(4)],
    "list of 10 000": [tensor() for _ in range(10_000)],
    "depth 100": deep(100),
}


def peers() -> dict[str, Callable[[Any, torch.device], Any]]:
    """The movers of other libraries, as far as they are installed."""

    def attribute(module: str, name: str) -> Any:
        return getattr(importlib.import_module(module), name)

    def tree_map(module: str, name: str) -> Any:
        apply = attribute(module, name)
        return lambda data, device: apply(
            lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, data
        )

    def tensordict(data: Any, device: torch.device) -> Any:
        return made.setdefault(id(data), cls(data, [])).to(device)

    makers: dict[str, Callable[[], Any]] = {
        "accelerate": lambda: attribute("accelerate.utils.operations", "send_to_device"),
        "lightning": lambda: attribute(
            "lightning.fabric.utilities.apply_func", "move_data_to_device"
        ),
        "ignite": lambda: attribute("ignite.utils", "convert_tensor"),
        "torch pytree": lambda: tree_map("torch.utils._pytree", "tree_map"),
        "optree": lambda: tree_map("optree", "tree_map"),
        "fastai": lambda: attribute("fastai.torch_core", "to_device"),
    }
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except Exception as error:  # not installed, or not for this torch: said, and left out
            print(f"without {name}: {error}")
    try:
        made: dict[int, Any] = {}
        cls = attribute("tensordict", "TensorDict")
        found["tensordict, prebuilt"] = tensordict
    except Exception as error:
        print(f"without tensordict: {error}")
    return found


def floor(tensors: list[torch.Tensor], device: torch.device) -> None:
    for x in tensors:
        x.to(device)


def floor_with_keyword(tensors: list[torch.Tensor], device: torch.device) -> None:
    for x in tensors:
        x.to(device, non_blocking=True)


def fault(mover: Callable[[Any, torch.device], Any], data: Any, count: int) -> str | None:
    """What is wrong with a mover on these data, or None."""
    try:
        moved = mover(data, META)
    except Exception as error:  # that it raises is the finding
        return f"raises {type(error).__name__}"
    left = [x for _, x in find_tensors(moved) if not x.is_meta]
    return f"leaves {len(left)} of {count} behind" if left else None


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {}
    movers: dict[str, Any] = {"devicekit": to_device, **peers()}
    for name, data in DATA.items():
        tensors = [x for _, x in find_tensors(data)]
        faults = {peer: fault(mover, data, len(tensors)) for peer, mover in movers.items()}
        if not isinstance(data, dict):
            faults["tensordict, prebuilt"] = "takes dicts only"
        runs = {
            peer: mover
            for peer, mover in movers.items()
            if not (faults[peer] or "").startswith(("raises", "takes"))
        }
        for way, device in (("move", META), ("nothing to move", CPU)):
            candidates: dict[str, Callable[[], object]] = {
                "floor": partial(floor, tensors, device),
                "floor, non_blocking=True": partial(floor_with_keyword, tensors, device),
                **{peer: partial(mover, data, device) for peer, mover in runs.items()},
            }
            found = paired(candidates, rounds=101 if len(tensors) < 1000 else 31, seconds=0.002)
            results[f"{name}, {way}"] = {
                "tensors": len(tensors),
                "times": found,
                "faults": {peer: text for peer, text in faults.items() if text},
            }
            print(f"{name}, {way}: " + ", ".join(f"{k} {v['ratio']:.2f}" for k, v in found.items()))
    return results


GOALS: dict[str, tuple[float, float | None]] = {
    # At most so many times the floor, and so many times accelerate.
    "dict of 4, move": (1.25, 0.70),
    "dict of 8, move": (1.25, 0.70),
    "64 leaves, move": (1.60, None),
    "list of 10 000, move": (1.25, None),
    "depth 100, move": (float("inf"), 0.40),
    "dict of 4, nothing to move": (0.5, 0.15),
    "dict of 8, nothing to move": (0.5, 0.15),
    "64 leaves, nothing to move": (1.3, None),
    "list of 10 000, nothing to move": (0.45, None),
}


def table(results: dict[str, Any]) -> str:
    """The ratios to the floor as Markdown."""
    names = list(dict.fromkeys(n for case in results.values() for n in case["times"]))
    names += [n for case in results.values() for n in case["faults"] if n not in names]
    names = [n for n in names if not n.startswith("floor")]
    lines = [
        "| data | floor | goal | " + " | ".join(names) + " |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for case, result in results.items():
        times, faults = result["times"], result["faults"]
        microseconds = times["floor"]["seconds"] * 1e6
        cells = []
        for name in names:
            cell = f"{times[name]['ratio']:.2f}" if name in times else "-"
            cells.append(f"{cell}\\*" if name in faults and name in times else cell)
        goal = GOALS.get(case, (float("inf"), None))[0]
        lines.append(
            f"| {case} | {microseconds:,.{2 if microseconds < 100 else 0}f} µs | "
            f"{'-' if goal == float('inf') else f'{goal:.2f}'} | " + " | ".join(cells) + " |"
        )
    said: dict[str, list[str]] = {}
    for result in results.values():
        for name, text in result["faults"].items():
            if name not in said.setdefault(text, []):
                said[text].append(name)
    lines += ["", *(f"- {', '.join(found)}: {text}" for text, found in said.items())]
    lines += ["", "| against accelerate | devicekit | goal |", "|---|---|---|"]
    for case, result in results.items():
        limit, times = GOALS.get(case, (0, None))[1], result["times"]
        if limit is not None and "accelerate" in times:
            ratio = times["devicekit"]["seconds"] / times["accelerate"]["seconds"]
            lines.append(f"| {case} | {ratio:.2f} | {limit:.2f} |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, Any]) -> None:
    """Bars of the ratios to the floor; "some" marks who left tensors behind."""
    panels = {
        case: {
            f"{name} (some)" if name in found["faults"] else name: timing["ratio"]
            for name, timing in found["times"].items()
            if not name.startswith(("floor", "tensordict"))
        }
        for case, found in results.items()
        if not case.startswith("depth")
    }
    bars("to_device", panels, "times the floor", line=1)


def main() -> None:
    torch.set_num_threads(1)
    load = [os.getloadavg()[0]]
    results = measure()
    load.append(os.getloadavg()[0])
    path = write(
        "to_device",
        {"load_before_and_after": load, "cases": results},
        *PEERS,
        "lightning-utilities",
    )
    path.with_suffix(".md").write_text(
        "# Moving nested data\n\n"
        "Times the floor, N calls of `tensor.to(device)` (least over least, one process, shuffled\n"
        "rounds); facts of the machine and all numbers in `to_device.json`. `-`: does not\n"
        "run, `*`: leaves tensors behind; see below the table.\n"
        f"The machine's load was {load[0]:.1f} before and {load[1]:.1f} after, on {os.cpu_count()} "
        "cores: above one, other programs ran too.\n\n" + table(results)
    )
    plot(results)
    print(path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
