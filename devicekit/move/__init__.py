"""to_device: move every tensor in anything, and change nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch.compiler import is_dynamo_compiling

from devicekit.device import Device
from devicekit.move.fast import Unsuited, movers
from devicekit.move.traced import move_traced
from devicekit.move.transfer import Transfer
from devicekit.tree import register, unregister

__all__ = ["to_device"]

T = TypeVar("T")
C = TypeVar("C")


_AUTO: Literal["auto"] = "auto"
_NOTHING = ()


class _ToDevice(Protocol):
    """The type of `to_device`: a function with functions on it."""

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
    non_blocking: bool | Literal["auto"] = _AUTO,
    strict: bool = False,
    skip: Collection[object] = _NOTHING,
) -> T:
    """Move every tensor in `data` to `device`, and change nothing else.

    Containers of every kind are rebuilt without their constructors: types, attributes and the
    order of keys are kept, the caller's objects are not changed, and a container in which nothing
    moved is returned itself, as `Tensor.to` does. A tensor that is there twice is moved once and
    stays one tensor; cycles and any depth are fine. A Parameter stays a Parameter and a leaf, with
    its grad. A module moves in place and is returned, its ties kept; an optimizer moves its state.
    An object with a method `to` that takes a device is copied and the copy asked to move, unless
    it is a container that can be looked into. Everything else is passed through.

    Args:
        data: Anything: a tensor, a batch, a module, an optimizer, or any structure of these.
        device: What `Device` takes. There is no fallback here: a device that cannot be used is an
            error.
        dtype: The dtype for floating-point tensors; all others keep theirs.
        non_blocking: With "auto", copies to an accelerator are asynchronous if their source is in
            pinned memory, and all others are done on return. True makes copies to an accelerator
            asynchronous from any memory; copies to the CPU are nevertheless done on return, and
            those to MPS never asynchronous, because there the source is not kept.
        strict: Raise if a tensor of the result is not on `device`: one that is hidden in an object
            that cannot be looked into, or that the object's own `to` left behind.
        skip: Keys or attribute names (at any depth), or paths such as "data['meta'].mask", whose
            values are left as they are.

    Returns:
        `data` itself if nothing in it moved, else a copy with the moved tensors.

    Raises:
        DeviceSpecError: `device` is no device.
        DeviceUnavailableError: `device` cannot be used here.
        MoveError: With `strict`, a tensor cannot be reached, or has a dtype that the device lacks;
            a module has parameters on `meta`, which hold no values.
        Exception: Whatever else torch or a method `to` raises, with a note that names the tensor.
            In notes, `data` is named data.

    Warns:
        UserWarning: Tensors were cast because the device has no float64 or complex128.

    Example:
        >>> batch = {"image": torch.zeros(2, 3), "boxes": [torch.ones(4)], "id": "a"}
        >>> moved = to_device(batch, "meta")
        >>> moved["boxes"][0].device, moved["id"], batch["boxes"][0].device
        (device(type='meta'), 'a', device(type='cpu'))
        >>> to_device(batch, "cpu") is batch
        True
    """
    memo = None
    if strict is False and skip is _NOTHING:  # by identity: quick, and asks nothing of anybody
        if is_dynamo_compiling():
            return cast(T, move_traced(data, device, dtype))
        if dtype is None and non_blocking is _AUTO:
            try:
                result: T = movers[device][type(data)](data, None)
                return result
            except Unsuited as unsuited:
                memo = unsuited.memo  # what has been moved is not moved again
            # torch's own, or too deep for recursion: the walker meets it again, and says where, or
            # goes on without recursion.
            except Exception:
                pass
    target = Device(device, fallback=None).torch
    return Transfer(target, dtype, non_blocking, strict, skip, memo).run(data)
