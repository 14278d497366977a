"""Which containers devicekit and its peers move rightly.

    python benchmarks/containers.py

The cases are those of tests/test_move_containers.py. One is right if every tensor moved, the type
and what else belongs to the object are as before, and the caller's object is unchanged. The other
device is `meta`. The results are results/containers.json and containers.md.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, write

from devicekit import to_device

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from test_move_containers import CASES, Case

Mover = Callable[[Any, str], Any]
OUTCOMES = ("right", "left behind", "changed", "raised")
PACKAGES = ("accelerate", "lightning", "pytorch-ignite", "fastai", "optree")


def movers() -> dict[str, Mover]:
    """The movers that are installed, by name."""
    found: dict[str, Mover] = {"devicekit": to_device}
    for name, load in {
        "accelerate": _accelerate,
        "Lightning": _lightning,
        "ignite": _ignite,
        "fastai": _fastai,
        "torch pytree": _pytree,
        "optree": _optree,
    }.items():
        try:
            found[name] = load()
        except ImportError as error:
            print(f"left out: {name}: {error}")
    return found


def judge(case: Case, move: Mover) -> str:
    """One of OUTCOMES."""
    data = case.make()
    before, rest = case.tensors(data), case.rest(data)
    try:
        moved = move(data, "meta")
    except Exception:  # whatever a peer raises is its answer
        return "raised"
    try:
        tensors = case.tensors(moved)
        if len(tensors) != len(before) or not all(x.is_meta for x in tensors):
            return "left behind"
        unchanged = all(old is new for old, new in zip(before, case.tensors(data), strict=True))
        same = type(moved) is type(data) and case.rest(moved) == rest
    except Exception:  # the result has no longer what the original had
        return "changed"
    return "right" if same and unchanged else "changed"


def main() -> None:
    """Judges every case with every mover and files the answers."""
    warnings.simplefilter("ignore")
    answers = {
        name: {case.name: judge(case, move) for case in CASES} for name, move in movers().items()
    }
    counts = {name: Counter(found.values()) for name, found in answers.items()}
    rows = [f"| of {len(CASES)} containers | {' | '.join(OUTCOMES)} |", "|---|---|---|---|---|"]
    for name, count in counts.items():
        rows.append(f"| {name} | {' | '.join(str(count[outcome]) for outcome in OUTCOMES)} |")
    write("containers", {"cases": answers}, *PACKAGES)
    text = (
        "*Right*: every tensor moved, nothing else changed. *Left behind*: a tensor stayed where\n"
        "it was, without a word. *Changed*: another type, lost attributes, the caller's object.\n"
    )
    (RESULTS / "containers.md").write_text("\n".join([text, *rows, ""]))
    print("\n".join(rows))


def _accelerate() -> Mover:
    from accelerate.utils import send_to_device

    return send_to_device


def _lightning() -> Mover:
    from lightning.fabric.utilities import move_data_to_device

    return lambda data, device: move_data_to_device(data, torch.device(device))


def _ignite() -> Mover:
    from ignite.utils import convert_tensor

    return lambda data, device: convert_tensor(data, device=device)


def _fastai() -> Mover:
    from fastai.torch_core import to_device as fastai_to_device

    return lambda data, device: fastai_to_device(data, torch.device(device))


def _pytree() -> Mover:
    from torch.utils._pytree import tree_map_only

    return lambda data, device: tree_map_only(torch.Tensor, lambda x: x.to(device), data)


def _optree() -> Mover:
    from optree import tree_map

    def move(data: Any, device: str) -> Any:
        return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, data)

    return move


if __name__ == "__main__":
    main()
