"""to_device: move every tensor in anything, and change nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Protocol, TypeVar, cast

import torch

from devicekit.device import Device
from devicekit.move.transfer import Transfer
from devicekit.tree import register, unregister

__all__ = ["to_device"]

T = TypeVar("T")
C = TypeVar("C")


class _ToDevice(Protocol):
    """The type of `to_device`: a function with a function on it."""

    def __call__(
        self,
        data: T,
        device: str | torch.device | int | None,
        *,
        dtype: torch.dtype | None = None,
        non_blocking: bool | Literal["auto"] = "auto",
        strict: bool = False,
        skip: Collection[object] = (),
    ) -> T: ...

    def register(
        self,
        cls: type[C],
        flatten: Callable[[C], Mapping[str, object]],
        unflatten: Callable[[C, dict[str, Any]], C],
    ) -> None: ...

    def unregister(self, cls: type) -> None: ...


def _with_registration(function: Callable[..., Any]) -> _ToDevice:
    function.register = register  # type: ignore[attr-defined]
    function.unregister = unregister  # type: ignore[attr-defined]
    return cast(_ToDevice, function)


@_with_registration
def to_device(
    data: T,
    device: str | torch.device | int | None,
    *,
    dtype: torch.dtype | None = None,
    non_blocking: bool | Literal["auto"] = "auto",
    strict: bool = False,
    skip: Collection[object] = (),
) -> T:
    """Move every tensor in `data` to `device`, and change nothing else."""
    transfer = Transfer(
        _resolve(device), dtype=dtype, non_blocking=non_blocking, strict=strict, skip=skip
    )
    return transfer.run(data)


def _resolve(device: str | torch.device | int | None) -> torch.device:
    return Device(device, fallback=None).torch
