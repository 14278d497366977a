"""One call of to_device."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from devicekit.tree import describe, map_tensors

__all__ = ["Transfer"]

T = TypeVar("T")


class Transfer:
    """One call of `to_device`: where to, how, and what is still on its way."""

    def __init__(
        self,
        device: torch.device,
        *,
        dtype: torch.dtype | None = None,
        non_blocking: bool | Literal["auto"] = "auto",
        strict: bool = False,
        skip: Collection[object] = (),
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.non_blocking = non_blocking
        self.strict = strict
        self.skip = skip

    def run(self, data: T) -> T:
        return map_tensors(data, self.tensor, other=self.other, note=self.note)

    def tensor(self, x: Tensor) -> Tensor:
        dtype = self.dtype if x.is_floating_point() else None
        if not isinstance(x, nn.Parameter):
            return x.to(self.device, dtype)
        if x.device == self.device and dtype in (None, x.dtype):
            return x
        moved = nn.Parameter(x.detach().to(self.device, dtype), requires_grad=x.requires_grad)
        if x.grad is not None:
            moved.grad = x.grad.to(self.device, dtype)
        return moved

    def other(self, x: object) -> object:
        if isinstance(x, nn.Module):
            return x.to(self.device, self.dtype)
        return x

    def note(self, path: str, x: object) -> str:
        origin = f" from {x.device}" if isinstance(x, Tensor) else ""
        return f"while moving {path} ({describe(x)}){origin} to {self.device}"
