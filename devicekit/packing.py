"""Many small tensors as one buffer, and back.

What a batch costs on its way from a worker process, through pinned memory and to a device, is paid
per tensor as long as the tensors are small. `pack` puts the small ones into one buffer.
"""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from devicekit import compat
from devicekit.errors import MoveError
from devicekit.tree import describe, map_tensors

__all__ = ["LARGE", "Packed", "pack", "pays", "unpack"]

T = TypeVar("T")

LARGE = 128 * 1024
"""Tensors of this many bytes or more are not packed: what they cost is copying, not handling."""

_ALIGNMENT = 64  # bytes: enough for every dtype and for the vector units of every processor

_PACKABLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
)


class _Slot:
    """Stands in the structure for the packed tensor number `index`."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> tuple[type[_Slot], tuple[int]]:
        return _Slot, (self.index,)


class _Segment(NamedTuple):
    """The tensors of one dtype, one after the other in the buffer."""

    dtype: torch.dtype
    start: int  # bytes
    size: int  # bytes
    slots: tuple[int, ...]
    shape: tuple[int, ...] | None  # if it is the same for all, and all are contiguous
    places: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...]  # else: shape, stride, offset


class Packed(Generic[T]):
    """A structure whose small tensors lie in one buffer; `unpack` gives the structure back.

    Made by `pack`. Travels as one tensor in place of the small ones: through a pickle, into pinned
    memory, to a device.

    Attributes:
        buffer: uint8[n], all the small tensors.
        rest: The structure; large tensors and whatever cannot be packed are still in it.
    """

    __slots__ = ("buffer", "rest", "segments")

    def __init__(self, buffer: Tensor, rest: object, segments: tuple[_Segment, ...]) -> None:
        self.buffer = buffer
        self.rest = rest
        self.segments = segments

    def __reduce__(self) -> tuple[type[Packed[T]], tuple[object, ...]]:
        return type(self), (self.buffer, self.rest, self.segments)

    def __repr__(self) -> str:
        count = sum(len(segment.slots) for segment in self.segments)
        return f"Packed({count} tensors in {self.buffer.nbytes} bytes on {self.buffer.device})"

    def pin_memory(self) -> Packed[T]:
        """Return it in pinned memory, as `devicekit.pin_memory` does."""
        # Imported when needed: `pin` and `move` are on the same floor as this module.
        from devicekit.pin import pin_memory

        buffer, rest = pin_memory((self.buffer, self.rest))
        return Packed(buffer, rest, self.segments)

    def to(
        self, device: str | torch.device, non_blocking: bool | Literal["auto"] = "auto"
    ) -> Packed[T]:
        """Return it on `device`, as `to_device` does.

        Raises:
            MoveError: `device` is MPS, and a tensor in the buffer is of a dtype that MPS has not:
                inside the buffer it cannot be cast.
        """
        from devicekit.move import to_device

        lacking = {segment.dtype for segment in self.segments} & {torch.float64, torch.complex128}
        if lacking and torch.device(device).type == "mps":
            raise MoveError(
                f"MPS has no {' and no '.join(sorted(map(str, lacking)))}, and packed tensors "
                "cannot be cast. Fix: to_device(unpack(packed), 'mps')"
            )
        moved = to_device((self.buffer, self.rest), device, non_blocking=non_blocking)
        return Packed(moved[0], moved[1], self.segments)


def pack(data: T) -> Packed[T]:
    """Put the small tensors of `data` into one buffer.

    Packed are dense CPU tensors below `LARGE` bytes. All else stays as it is: large tensors, which
    gain nothing and would have to be copied; tensors that require grad, whose history a copy would
    cut; sparse, nested and quantized ones, subclasses, those on other devices. In a worker of a
    DataLoader the buffer is made in shared memory, so that it is not copied again on its way.

    Args:
        data: Tensors in any structure that `to_device` knows.

    Returns:
        What `unpack` makes into the same structure with equal tensors; `data` is not changed.

    Example:
        >>> import torch
        >>> from devicekit import pack, unpack
        >>> packed = pack([torch.zeros(3), {"n": torch.tensor(7), "id": "a"}])
        >>> packed
        Packed(2 tensors in 72 bytes on cpu)
        >>> unpack(packed)
        [tensor([0., 0., 0.]), {'n': tensor(7), 'id': 'a'}]
    """
    leaves: list[Tensor] = []

    def take(tensor: Tensor) -> Tensor:
        if not _is_packable(tensor):
            return tensor
        leaves.append(tensor)
        return cast(Tensor, _Slot(len(leaves) - 1))

    rest = map_tensors(data, take)
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, leaf in enumerate(leaves):
        by_dtype.setdefault(leaf.dtype, []).append(index)

    plans, end = [], 0
    for dtype, slots in by_dtype.items():
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        plan = _lay_out(dtype, start, slots, [leaves[slot] for slot in slots])
        plans.append(plan)
        end = start + plan[0].size

    if get_worker_info() is not None:
        buffer = compat.shared_memory(end)
    else:
        buffer = torch.empty(end, dtype=torch.uint8, device="cpu")
    for segment, flat in plans:
        if segment.size:
            torch.cat(flat, out=_typed(buffer, segment))
    return Packed(buffer, rest, tuple(segment for segment, _ in plans))


def unpack(packed: Packed[T]) -> T:
    """Give back the structure that `pack` took, on the device where the buffer is now.

    The tensors are independent in all but memory: an in-place operation on one does not disturb
    autograd for another. They share the buffer's storage, so one of them keeps all of it alive, and
    `torch.save` of one writes all of it: `clone` what you keep.

    Args:
        packed: What `pack` returned, moved or not.

    Example:
        >>> import torch
        >>> from devicekit import pack, unpack
        >>> unpack(pack((torch.ones(2), torch.ones(2, dtype=torch.int64))))
        (tensor([1., 1.]), tensor([1, 1]))
    """
    if type(packed) is not Packed:
        raise TypeError(f"`packed` must be what `pack` returned, but is a {describe(packed)}")
    count = sum(len(segment.slots) for segment in packed.segments)
    leaves: list[Tensor | None] = [None] * count
    for segment in packed.segments:
        for slot, leaf in zip(segment.slots, _views(packed.buffer, segment), strict=True):
            leaves[slot] = leaf

    def fill(value: object) -> object:
        return leaves[value.index] if type(value) is _Slot else value

    return cast(T, map_tensors(packed.rest, lambda tensor: tensor, other=fill))


def pays(count: int, nbytes: int) -> bool:
    """Whether `count` small tensors of together `nbytes` reach an accelerator sooner when packed.

    Derived, not measured on a GPU. One by one, each costs a call of the driver of 3.5 us (H100,
    https://github.com/meta-pytorch/torchcomms/issues/2195) and one of torch of 1 to 3 us; packing
    and unpacking cost about 2 us each, a few microseconds once, and a copy on the host, at about
    10 GB/s. So it gains some 3 us per tensor less 1 us per 10 KB.
    """
    return count >= 8 and nbytes <= count * 32 * 1024


def _is_packable(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_nested
        and tensor.nbytes < LARGE
        and tensor.dtype in _PACKABLE
    )


def _lay_out(
    dtype: torch.dtype, start: int, slots: list[int], members: list[Tensor]
) -> tuple[_Segment, list[Tensor]]:
    """Plan one segment; return it with its members as one-dimensional tensors in order."""
    places, flat, offset = [], [], 0
    for each in members:
        if each.is_contiguous():
            flat.append(each.view(-1))
        else:  # `clone` keeps the order of the dimensions, but leaves no gaps
            each = each.clone()
            flat.append(each.as_strided((each.numel(),), (1,)))
        places.append((tuple(each.shape), each.stride(), offset))
        offset += each.numel()
    shape = None
    if members[0].is_contiguous() and len({place[:2] for place in places}) == 1:
        shape, places = places[0][0], []
    size = offset * dtype.itemsize
    return _Segment(dtype, start, size, tuple(slots), shape, tuple(places)), flat


def _typed(buffer: Tensor, segment: _Segment) -> Tensor:
    return buffer[segment.start : segment.start + segment.size].view(segment.dtype)


def _views(buffer: Tensor, segment: _Segment) -> list[Tensor]:
    """The tensors of one segment.

    Views of one tensor share a version counter: an in-place operation on one would make backward of
    another fail ("modified by an inplace operation"). `.data` gives each its own; `detach` would
    not.
    """
    base = _typed(buffer, segment)
    if segment.shape is not None:
        return [view.data for view in base.view(len(segment.slots), *segment.shape).unbind(0)]
    begin, strided = base.storage_offset(), base.as_strided
    return [strided(shape, stride, begin + at).data for shape, stride, at in segment.places]
