"""Many small tensors as one buffer, and back.

What a batch costs on its way from a worker process, through pinned memory and to a device, is paid
per tensor as long as the tensors are small. `pack` puts the small ones into one buffer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from devicekit import compat
from devicekit.errors import MoveError
from devicekit.tree import describe, find_tensors, map_tensors
from devicekit.tree.anatomy import class_attribute
from devicekit.tree.containers import container_of

__all__ = ["LARGE", "Packed", "pack", "pays", "unpack"]

T = TypeVar("T")

LARGE = 128 * 1024
"""Tensors of this many bytes or more are not packed: what they cost is copying, not handling."""

_IN_PIPE = 256 * 1024  # bytes
"""A buffer of up to this size goes to another process with the structure, through the pipe.

Larger ones go as a file in shared memory, as all tensors of PyTorch do: their descriptor is sent
when the receiver asks for it, by a thread that has to wait for the one which makes the next batch.
The pipe is clearly quicker up to this size and about as quick up to 2 MB, but copies more often.
"""

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


class Parts(NamedTuple):
    """A structure taken apart.

    Attributes:
        rest: The structure, with a `_Slot` in place of each small tensor.
        small: These tensors, in the order of the slots.
        others: The tensors that cannot be packed: they are still in the rest, or in its objects.
        is_looked_into: Whether the rest holds no object, besides tensors, that the walker does not
            look into.
    """

    rest: object
    small: list[Tensor]
    others: list[Tensor]
    is_looked_into: bool


class Packed(Generic[T]):
    """A structure whose small tensors lie in one buffer; `unpack` gives the structure back.

    Made by `pack`. Travels as one tensor in place of the small ones: through a pickle, into pinned
    memory, to a device.

    Attributes:
        buffer: uint8[n], all the small tensors.
        rest: The structure; large tensors and whatever cannot be packed are still in it.
    """

    __slots__ = ("_is_all", "_segments", "buffer", "rest")

    def __init__(
        self, buffer: Tensor, rest: object, segments: tuple[_Segment, ...], is_all: bool
    ) -> None:
        self.buffer = buffer
        self.rest = rest
        self._segments = segments
        self._is_all = is_all  # there is nothing in the rest that could be moved

    def __reduce__(self) -> tuple[type[Packed[T]], tuple[object, ...]]:
        return type(self), (self.buffer, self.rest, self._segments, self._is_all)

    def __repr__(self) -> str:
        count = sum(len(segment.slots) for segment in self._segments)
        return f"Packed({count} tensors in {self.buffer.nbytes} bytes on {self.buffer.device})"

    @property
    def movable(self) -> object:
        """A structure of all that can be moved."""
        # The buffer alone spares a walk over as many slots as there are tensors.
        return self.buffer if self._is_all else (self.buffer, self.rest)

    def replaced(self, movable: Any) -> Packed[T]:
        """Return it with what `movable` has become."""
        buffer, rest = (movable, self.rest) if self._is_all else movable
        return Packed(buffer, rest, self._segments, self._is_all)

    def pin_memory(self) -> Packed[T]:
        """Return it in pinned memory, as `devicekit.pin_memory` does."""
        # Imported when needed: `pin` and `move` are on the same floor as this module.
        from devicekit.pin import pin_memory

        return self.replaced(pin_memory(self.movable))

    def to(
        self, device: str | torch.device, non_blocking: bool | Literal["auto"] = "auto"
    ) -> Packed[T]:
        """Return it on `device`, as `to_device` does.

        Raises:
            MoveError: `device` is MPS, and a tensor in the buffer is of a dtype that MPS has not:
                inside the buffer it cannot be cast.
        """
        from devicekit.move import to_device

        lacking = {segment.dtype for segment in self._segments} & {torch.float64, torch.complex128}
        if lacking and torch.device(device).type == "mps":
            raise MoveError(
                f"MPS has no {' and no '.join(sorted(map(str, lacking)))}, and packed tensors "
                "cannot be cast. Fix: to_device(unpack(packed), 'mps')"
            )
        return self.replaced(to_device(self.movable, device, non_blocking=non_blocking))


def pack(data: T) -> Packed[T]:
    """Put the small tensors of `data` into one buffer.

    Packed are dense CPU tensors below `LARGE` bytes. All else stays as it is: large tensors, which
    gain nothing and would have to be copied; tensors that require grad, whose history a copy would
    cut; sparse, nested and quantized ones, subclasses, those on other devices; those in sets and in
    registered types, which may look at them when they are made. In a worker of a
    DataLoader a large buffer is made in shared memory, so that it is not copied again on its way;
    a small one goes through the pipe.

    Args:
        data: Tensors in any structure that `to_device` knows.

    Returns:
        What `unpack` makes into the same structure with equal tensors; `data` is not changed.

    Example:
        >>> import torch
        >>> from devicekit import pack, unpack
        >>> packed = pack([torch.zeros(3), {"n": torch.tensor(7), "id": "a"}])
        >>> packed
        Packed(2 tensors in 76 bytes on cpu)
        >>> unpack(packed)
        [tensor([0., 0., 0.]), {'n': tensor(7), 'id': 'a'}]
    """
    return put_together(take_apart(data))


def take_apart(data: object, kept: Collection[int] = ()) -> Parts:
    """Find what `pack` packs; `data` is not changed.

    Args:
        data: Tensors in any structure.
        kept: The `id` of tensors that are to stay in it.
    """
    small: list[Tensor] = []
    others: list[Tensor] = []
    foreign: list[object] = []

    def take(tensor: Tensor) -> Tensor:
        if id(tensor) in kept or not _is_packable(tensor):
            others.append(tensor)
            return tensor
        small.append(tensor)
        return cast(Tensor, _Slot(len(small) - 1))

    def note(value: object) -> object:
        foreign.append(value)
        return value

    rest = map_tensors(data, take, other=note, stand_ins=True)
    whole = [x for x in foreign if _may_hold_tensors(type(x))]
    inside = {id(tensor): tensor for _, tensor in find_tensors(whole)}
    if inside.keys() & set(map(id, small)):  # there twice: it has to stay one
        return take_apart(data, inside.keys())
    others.extend(inside.values())
    return Parts(rest, small, others, not foreign)


def _may_hold_tensors(cls: type) -> bool:
    """Whether the walker finds tensors in objects of this type, though it leaves them whole."""
    return container_of(cls) is not None or callable(class_attribute(cls, "to"))


def put_together(parts: Parts) -> Packed[Any]:
    """Put the small tensors into one buffer."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(parts.small):
        by_dtype.setdefault(tensor.dtype, []).append(index)

    plans, end = [], 0
    # Large elements first: then no two dtypes overlap when their offsets are counted in elements,
    # as AOTAutograd does to find out whether an input that is changed is part of another.
    for dtype, slots in sorted(by_dtype.items(), key=lambda each: -each[0].itemsize):
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        plan = _lay_out(dtype, start, slots, [parts.small[slot] for slot in slots])
        plans.append(plan)
        end = start + plan[0].size

    if end > _IN_PIPE and get_worker_info() is not None:
        buffer = compat.shared_memory(end)
    else:
        buffer = torch.empty(end, dtype=torch.uint8, device="cpu")
    for segment, members in plans:
        if segment.size:
            _fill(_typed(buffer, segment), segment, members)
    segments = tuple(segment for segment, _ in plans)
    return Packed(buffer, parts.rest, segments, parts.is_looked_into and not parts.others)


def unpack(packed: Packed[T]) -> T:
    """Give back the structure that `pack` took, on the device where the buffer is now.

    The tensors are independent in all but memory: an in-place operation on one does not disturb
    autograd for another. They share the buffer's storage, so one of them keeps all of it alive, and
    `torch.save` of one writes all of it: `clone` what you keep.

    Args:
        packed: What `pack` returned, moved or not.

    Raises:
        TypeError: `packed` is something else.

    Example:
        >>> import torch
        >>> from devicekit import pack, unpack
        >>> unpack(pack((torch.ones(2), torch.ones(2, dtype=torch.int64))))
        (tensor([1., 1.]), tensor([1, 1]))
    """
    if type(packed) is not Packed:
        raise TypeError(f"`packed` must be what `pack` returned, but is a {describe(packed)}")
    count = sum(len(segment.slots) for segment in packed._segments)
    leaves: list[Tensor | None] = [None] * count
    for segment in packed._segments:
        for slot, leaf in zip(segment.slots, _views(packed.buffer, segment), strict=True):
            leaves[slot] = leaf

    def fill(value: object) -> object:
        return leaves[value.index] if type(value) is _Slot else value

    return cast(T, map_tensors(packed.rest, lambda tensor: tensor, other=fill, stand_ins=True))


def pays(count: int, nbytes: int, *, from_worker: bool = False) -> bool:
    """Whether `count` small tensors of together `nbytes` arrive sooner when packed.

    From a worker process, one does: sent by itself it takes a file in shared memory, a descriptor
    that is sent and a mapping, which is far more than copying it.

    To an accelerator, derived and not measured on a GPU: one by one, each costs a call of the
    driver of 3.5 us (H100, https://github.com/meta-pytorch/torchcomms/issues/2195) and one of torch
    of 1 to 3 us; packing and unpacking cost about 2 us each, a few microseconds once, and a copy on
    the host, at about 10 GB/s. So it gains some 3 us per tensor less 1 us per 10 KB.
    """
    if from_worker:
        return count >= 1
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
    """Plan one segment; return it with its members as they are to be put into the buffer."""
    shape = members[0].shape
    if all(map(Tensor.is_contiguous, members)) and {each.shape for each in members} == {shape}:
        size = shape.numel() * len(members) * dtype.itemsize
        return _Segment(dtype, start, size, tuple(slots), tuple(shape), ()), members

    places, flat, offset = [], [], 0
    for each in members:
        if each.is_contiguous():
            flat.append(each if each.dim() == 1 else each.view(-1))
        else:  # `clone` keeps the order of the dimensions, but leaves no gaps
            each = each.clone()
            flat.append(each.as_strided((each.numel(),), (1,)))
        places.append((tuple(each.shape), each.stride(), offset))
        offset += each.numel()
    return _Segment(dtype, start, offset * dtype.itemsize, tuple(slots), None, tuple(places)), flat


def _fill(target: Tensor, segment: _Segment, members: list[Tensor]) -> None:
    if segment.shape is None:
        torch.cat(members, out=target)
    else:  # takes a fifth of the time of `cat`, which needs a flat view of each
        torch.stack(members, out=target.view(len(members), *segment.shape))


def _reduce_for_process(packed: Packed[Any]) -> tuple[Any, ...]:
    buffer = packed.buffer
    make, (_, *others) = packed.__reduce__()
    is_shared = buffer.is_shared()  # type: ignore[no-untyped-call]
    if is_shared or not buffer.is_cpu or buffer.nbytes > _IN_PIPE:
        return make, (buffer, *others)
    return _received, (ctypes.string_at(buffer.data_ptr(), buffer.nbytes), *others)


def _received(data: bytes, *others: Any) -> Packed[Any]:
    buffer = torch.empty(len(data), dtype=torch.uint8, device="cpu")
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return Packed(buffer, *others)


ForkingPickler.register(Packed, _reduce_for_process)


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
