"""What type checkers say about guards and reports; never run, only checked."""

from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import torch
from torch import Tensor, nn

import devicekit
from devicekit import Device, audit, explain, guard, same_device


@guard
def add(a: Tensor, b: Tensor, *, scale: float = 1.0) -> Tensor:
    return (a + b) * scale


@guard(device="cuda", move=True, allow=("lengths",))
def pack(x: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
    return x, len(lengths)


@guard
async def answer(x: Tensor) -> list[Tensor]:
    return [x]


@guard
def stream(x: Tensor) -> Iterator[Tensor]:
    yield x


@guard
async def slow_stream(x: Tensor) -> AsyncIterator[Tensor]:
    yield x


class Net(nn.Module):
    @guard
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x

    @guard
    @staticmethod
    def twice(x: Tensor) -> Tensor:
        return x * 2

    @classmethod
    @guard
    def default(cls) -> "Net":
        return cls()


async def main(x: Tensor) -> None:
    assert_type(add(x, x, scale=2.0), Tensor)
    assert_type(pack(x, lengths=x), tuple[Tensor, int])
    assert_type(await answer(x), list[Tensor])
    assert_type(stream(x), Iterator[Tensor])
    assert_type(slow_stream(x), AsyncIterator[Tensor])
    assert_type(Net().forward(x), Tensor)
    assert_type(Net.twice(x), Tensor)
    assert_type(Net.default(), Net)
    assert_type(guard(Net()), Net)
    assert_type(guard(nn.Linear(1, 1), allow="input"), nn.Linear)
    assert_type(same_device(x, [x]), Device)
    assert_type(explain(ValueError()), str | None)
    for finding in audit(Net(), torch.optim.SGD(Net().parameters()), device="cuda"):
        assert_type(finding.path, str)
    assert_type(audit(Net()).json(), str)


add(1, 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
guard(3)  # type: ignore[call-overload]  # pyright: ignore
devicekit.guard(add, allow=3)  # type: ignore[call-overload]  # pyright: ignore
