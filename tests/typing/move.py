"""to_device gives back the type that it got. Checked by mypy and pyright, never run."""

from dataclasses import dataclass
from typing import NamedTuple, TypedDict, assert_type

import torch
from torch import Tensor, nn

from devicekit import Device, find_tensors, to_device


@dataclass
class Batch:
    x: Tensor


class Point(NamedTuple):
    x: Tensor
    n: int


class Sample(TypedDict):
    image: Tensor
    label: int


class Net(nn.Module):
    pass


def tensors(x: Tensor, parameter: nn.Parameter) -> None:
    assert_type(to_device(x, "cpu"), Tensor)
    assert_type(to_device(parameter, "cpu"), nn.Parameter)


def containers(
    batch: Batch, point: Point, sample: Sample, data: dict[str, list[Tensor]], number: int
) -> None:
    assert_type(to_device(batch, "cuda:0"), Batch)
    assert_type(to_device(point, torch.device("cpu")), Point)
    assert_type(to_device(sample, Device("cpu")), Sample)
    assert_type(to_device(data, 0), dict[str, list[Tensor]])
    assert_type(to_device((batch, number), None), tuple[Batch, int])


def modules(net: Net, optimizer: torch.optim.Adam) -> None:
    assert_type(to_device(net, "cpu"), Net)
    assert_type(to_device((net, optimizer), "cpu"), tuple[Net, torch.optim.Adam])


def options(batch: Batch) -> None:
    to_device(batch, "cpu", dtype=torch.bfloat16, strict=True, skip=("x",), non_blocking="auto")
    to_device(batch, "cpu", non_blocking=False, skip={"x", 3})
    to_device(batch, "cpu", non_blocking="maybe")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    to_device(batch)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def registration() -> None:
    to_device.register(Batch, lambda b: {".x": b.x}, lambda b, new: Batch(new[".x"]))
    to_device.unregister(Batch)


def paths(batch: Batch) -> None:
    for path, x in find_tensors(batch):
        assert_type(path, str)
        assert_type(x, Tensor)
