"""What a guard costs while all is well: eager by the number of parameters, and compiled.

Run `python benchmarks/guard.py`; the results go to `benchmarks/results/guard.json` and `guard.md`.
Times are the least of many short rounds, so that a busy machine disturbs little.
"""

from collections.abc import Callable

import torch
from common import RESULTS, paired, write
from torch import Tensor, nn

from devicekit import guard

ROUNDS, SECONDS = 400, 0.002


def model_of(parameters: int, guarded: bool) -> nn.Module:
    """A module with so many parameters whose `forward` does nothing."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1)
            self.layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(parameters // 2 - 1)])

        def forward(self, x: Tensor) -> Tensor:
            return x

    if guarded:
        Model.forward = guard(Model.forward)  # type: ignore[method-assign]
    return Model()


def eager(x: Tensor) -> dict[str, dict[str, float]]:
    def calling(function: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        return lambda: function(x)

    add = guard(lambda x: x)
    candidates = {
        "bare, 10 parameters": calling(model_of(10, False).forward),
        "guarded, 10 parameters": calling(model_of(10, True).forward),
        "bare, 1000 parameters": calling(model_of(1000, False).forward),
        "guarded, 1000 parameters": calling(model_of(1000, True).forward),
        "guarded function": calling(add),
    }
    return paired(candidates, rounds=ROUNDS, seconds=SECONDS)


def compiled(x: Tensor, backend: str) -> dict[str, dict[str, float]]:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    class Guarded(Plain):
        forward = guard(Plain.forward)

    candidates: dict[str, Callable[[], object]] = {}
    for name, cls in {"bare": Plain, "guarded": Guarded}.items():
        module = torch.compile(cls(), backend=backend, fullgraph=True)
        candidates[f"{name}, compiled ({backend})"] = lambda module=module: module(x)  # type: ignore[misc]
    return paired(candidates, rounds=ROUNDS, seconds=SECONDS)


def main() -> None:
    torch.set_num_threads(1)
    x = torch.ones(4, 8)
    found = {"eager": eager(x)}
    for backend in ("eager", "inductor"):
        found[f"compiled, {backend}"] = compiled(x, backend)
    rows = ["| what | time of a call | over bare |", "|---|---|---|"]
    for kind, timings in found.items():
        bare = 0.0
        for name, timing in timings.items():
            bare = timing["seconds"] if name.startswith("bare") else bare
            extra = timing["seconds"] - bare
            over = "" if name.startswith("bare") else f"+{extra * 1e6:.2f} µs"
            if kind.startswith("compiled") and over:
                over = f"{timing['seconds'] / bare:.3f} times"
            rows.append(f"| {name} | {timing['seconds'] * 1e6:.2f} µs | {over} |")
    write("guard", found)
    head = "Measured by `python benchmarks/guard.py`; machine and versions are in `guard.json`.\n\n"
    (RESULTS / "guard.md").write_text(head + "\n".join(rows) + "\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
