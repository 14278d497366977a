"""The C functions under `torch.nn.parallel.comm`, which `torch.nn.DataParallel` uses."""

from collections.abc import Sequence
from typing import Any

import torch

from devicekit.testing.simulation import state
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Give `torch._C` the functions; their signatures are in torch/csrc/cuda/python_comm.cpp."""
    for function in (
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _scatter,
        _scatter_out,
        _gather,
        _gather_out,
    ):
        patches.set(torch._C, function.__name__, function)


def _on(x: torch.Tensor, index: int | None) -> torch.Tensor:
    return x.to(state.device(state.resolve(index)))


def _broadcast(x: torch.Tensor, devices: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(_on(x, index) for index in devices)


def _broadcast_out(x: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    for y in out:
        y.copy_(x)
    return out


def _broadcast_coalesced(
    xs: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return [[_on(x, index) for x in xs] for index in devices]


def _scatter(
    x: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Any = None,
) -> tuple[torch.Tensor, ...]:
    chunks = (
        x.chunk(len(devices), dim) if chunk_sizes is None else torch.split(x, [*chunk_sizes], dim)
    )
    return tuple(_on(chunk, index) for chunk, index in zip(chunks, devices, strict=False))


def _scatter_out(
    x: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Any = None
) -> Sequence[torch.Tensor]:
    for y, chunk in zip(out, torch.split(x, [y.size(dim) for y in out], dim), strict=True):
        y.copy_(chunk)
    return out


def _gather(xs: Sequence[torch.Tensor], dim: int, destination: int | None = None) -> torch.Tensor:
    if destination == -1:
        return torch.cat([x.cpu() for x in xs], dim)
    return torch.cat([_on(x, destination) for x in xs], dim)


def _gather_out(xs: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
    return out.copy_(torch.cat([x.to(out.device) for x in xs], dim))
