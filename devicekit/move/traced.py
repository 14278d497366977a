"""to_device while torch.compile traces it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

__all__ = ["move_traced"]


def move_traced(x: Any, device: Any, dtype: torch.dtype | None) -> Any:
    """Move what a traced function can hold: dict, list, tuple, namedtuple, dataclass.

    In a graph there is no identity to keep and nothing to save, so this is plain recursion. The
    memo of the walker could not be traced: tensors in a graph have no `id`.
    """
    if isinstance(x, Tensor):
        return x.to(device, dtype if x.is_floating_point() else None)
    if isinstance(x, dict):
        moved = x.copy()
        for key, value in x.items():
            moved[key] = move_traced(value, device, dtype)
        return moved
    if isinstance(x, list):
        return [move_traced(value, device, dtype) for value in x]
    if isinstance(x, tuple):
        values = [move_traced(value, device, dtype) for value in x]
        return type(x)(*values) if hasattr(x, "_fields") else tuple(values)
    # Not `dataclasses.is_dataclass`, which torch 2.6 cannot trace: it asks the class.
    if hasattr(x, "__dataclass_fields__") and not isinstance(x, type):
        twin = object.__new__(type(x))
        for field in dataclasses.fields(x):
            value = move_traced(getattr(x, field.name), device, dtype)
            object.__setattr__(twin, field.name, value)
        return twin
    return x
