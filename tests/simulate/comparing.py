"""What the tests of the simulated accelerator share: the same code on the CPU and on the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def on(device: str, *tensors: torch.Tensor) -> None:
    """Check that tensors are on a device."""
    for x in tensors:
        assert x.device == torch.device(device)


def close(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    """Check that two results hold the same values, wherever they are."""
    if isinstance(one, torch.Tensor):
        one, other = one.detach().cpu(), other.detach().cpu()
    torch.testing.assert_close(one, other, rtol=tolerance * 10, atol=tolerance, equal_nan=True)


def same_as_cpu(device: str, compute: Callable[[str], Any], tolerance: float = 1e-5) -> None:
    """Check that a computation gives on the device what it gives on the CPU, with the same seed."""
    torch.manual_seed(0)
    expected = _flat(compute("cpu"))
    torch.manual_seed(0)
    found = _flat(compute(device))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        on(device, a)
        close(a, b, tolerance)


def _flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [x for part in result for x in _flat(part)]


def refused(call: Callable[[], Any], match: str | None = None) -> str:
    """Check that a call raises a device error, and return its text."""
    with pytest.raises((RuntimeError, TypeError, ValueError), match=match) as raised:
        call()
    assert not isinstance(raised.value, NotImplementedError), raised.value
    text = str(raised.value)
    if match is None:
        assert any(word in text.lower() for word in ("device", "cuda", "cpu")), text
    return text
