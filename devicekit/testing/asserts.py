"""Assertions about nested data and devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from devicekit.device import Device
from devicekit.tree import describe, find_tensors
from devicekit.tree.containers import container_of

__all__ = ["assert_on", "assert_same"]


def assert_on(device: str | torch.device, data: object) -> None:
    """Assert that every tensor in `data` is on `device`, and that there is one.

    Args:
        device: What `Device` takes.
        data: Tensors, modules, optimizers, in any structure.

    Raises:
        AssertionError: A tensor is elsewhere, or there is none. All that are elsewhere are named.

    Example:
        >>> assert_on("cpu", {"x": torch.zeros(2), "ids": [torch.ones(1)]})
        >>> assert_on("meta", {"x": torch.zeros(2)})
        Traceback (most recent call last):
        AssertionError: expected all tensors on meta, but found
          data['x'] (float32[2], 8 bytes) on cpu
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    wanted = Device(device, fallback=None).torch
    found = list(find_tensors(data))
    if not found:
        raise AssertionError(f"expected tensors on {wanted}, but found none in {describe(data)}")
    wrong = [f"{path} ({describe(t)}) on {t.device}" for path, t in found if t.device != wanted]
    if wrong:
        listed = "\n  ".join(wrong)
        raise AssertionError(f"expected all tensors on {wanted}, but found\n  {listed}")


def assert_same(actual: object, expected: object) -> None:
    """Assert that two structures are equal: types, order of keys, attributes, values of tensors.

    Tensors may be on different devices; tensors on `meta` have no values, so these are not
    compared. NaN equals NaN.

    Args:
        actual: Nested data.
        expected: Nested data.

    Raises:
        AssertionError: They differ; the path of the first difference is named.

    Example:
        >>> assert_same({"x": [torch.zeros(2)]}, {"x": [torch.zeros(2)]})
        >>> assert_same({"x": [torch.zeros(2)]}, {"x": [torch.ones(2)]})
        Traceback (most recent call last):
        AssertionError: at data['x'][0]: tensor([0., 0.]) is not tensor([1., 1.])
    """
    __tracebackhide__ = True
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[str, Any, Any]] = [("data", actual, expected)]
    while stack:
        path, a, b = stack.pop()
        if (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if type(a) is not type(b):
            raise AssertionError(f"at {path}: {a!r} of {type(a)} is not {b!r} of {type(b)}")
        container = container_of(type(a))
        if container is None:
            if not _is_equal(a, b):
                raise AssertionError(f"at {path}: {a!r} is not {b!r}")
            if isinstance(a, Tensor):
                mine, yours = vars(a), vars(b)
                if mine.keys() != yours.keys():
                    raise AssertionError(f"at {path}: attributes {[*mine]} are not {[*yours]}")
                stack += [(f"{path}.{name}", mine[name], yours[name]) for name in mine]
            continue
        children_a, children_b = container.children(a), container.children(b)
        if isinstance(a, set | frozenset):  # in no order
            with_values = not any(x.is_meta for _, x in find_tensors([a, b]))
            children_a.sort(key=lambda x: _rank(x, with_values))
            children_b.sort(key=lambda x: _rank(x, with_values))
        elif container.steps(a) != container.steps(b):
            names = [[s.before + "..." + s.after for s in container.steps(x)] for x in (a, b)]
            raise AssertionError(f"at {path}: {names[0]} are not {names[1]}")
        if len(children_a) != len(children_b):
            raise AssertionError(f"at {path}: {a!r} is not {b!r}")
        paths = [step.before + path + step.after for step in container.steps(a)]
        stack += reversed(list(zip(paths, children_a, children_b, strict=True)))


def _is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return _is_equal_tensor(a, b)
    if isinstance(a, nn.Module):
        mine, yours = a.state_dict(), b.state_dict()
        return list(mine) == list(yours) and all(_is_equal(mine[k], yours[k]) for k in mine)
    if a is b:
        return True
    equal = a == b
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def _is_equal_tensor(a: Tensor, b: Tensor) -> bool:
    if (a.dtype, a.shape, a.layout, a.requires_grad) != (
        b.dtype,
        b.shape,
        b.layout,
        b.requires_grad,
    ):
        return False
    if a.is_meta or b.is_meta:
        return True
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return (
        torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        if a.dtype.is_floating_point or a.dtype.is_complex
        else torch.equal(a, b)
    )


def _rank(x: object, with_values: bool, depth: int = 8) -> str:
    """Something to sort the elements of a set by, the same for equal elements."""
    if isinstance(x, Tensor):
        values = x.detach().cpu().tolist() if with_values else ""
        return f"{x.dtype} {tuple(x.shape)} {values}"
    container = container_of(type(x))
    if container is None or depth == 0:
        return f"{type(x)} {x if isinstance(x, str | int | None) else ''}"
    inner = [_rank(child, with_values, depth - 1) for child in container.children(x)]
    if isinstance(x, set | frozenset):
        inner.sort()
    return f"{type(x)} {inner}"
