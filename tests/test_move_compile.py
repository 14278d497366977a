"""to_device inside torch.compile(fullgraph=True)."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from devicekit import Device, to_device

Point = namedtuple("Point", "x y")


@dataclass
class Record:
    x: Tensor
    n: int = 3


@dataclass(frozen=True)
class Frozen:
    x: Tensor
    n: int = 3


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), Device("cpu")], ids=repr)
@pytest.mark.parametrize(
    ("make", "use"),
    [
        (lambda x: x, lambda b: b + 1),
        (lambda x: {"a": x, "n": 3, "s": "t"}, lambda b: b["a"] + b["n"]),
        (lambda x: [x, x + 1], lambda b: b[0] + b[1]),
        (lambda x: (x, [x]), lambda b: b[0] + b[1][0]),
        (lambda x: Point(x, 2), lambda b: b.x + b.y),
        (lambda x: Record(x), lambda b: b.x + b.n),
        (lambda x: Frozen(x), lambda b: b.x + b.n),
        (lambda x: {"r": [Record(x), Point(x, (x,))]}, lambda b: b["r"][0].x + b["r"][1].y[0]),
    ],
    ids=["tensor", "dict", "list", "tuple", "namedtuple", "dataclass", "frozen", "nested"],
)
def test_fullgraph(
    make: Callable[[Tensor], Any], use: Callable[[Any], Tensor], device: Any
) -> None:
    major, minor = map(int, torch.__version__.split(".")[:2])
    if isinstance(device, Device) and (major, minor) < (2, 10):
        pytest.skip("this torch cannot trace a subclass of str: pass `device.torch`")

    def step(x: Tensor) -> Tensor:
        return use(to_device(make(x), device))

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    x = torch.arange(3.0)
    assert torch.equal(compiled(x), step(x))


def test_fullgraph_with_the_batch_as_an_argument() -> None:
    def step(batch: Any) -> Tensor:
        moved = to_device(batch, "meta", dtype=torch.float64)
        return moved["r"].x + moved["p"].y + moved["ids"]

    torch.compiler.reset()
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    batch = {"r": Record(torch.ones(2)), "p": Point(1, torch.ones(2)), "ids": torch.ones(2).long()}
    result = compiled(batch)
    assert (result.device.type, result.dtype) == ("meta", torch.float64)
