"""Copies that land late, as `async_copies=True` asks.

Kernels of the simulation run at once, on the calling thread. A copy between host and device that
CUDA would do asynchronously does not: until it has landed its destination holds poison (NaN, or the
largest value of the type), and the source is read when it lands.

A copy on stream S lands

- before a kernel that uses its tensors, on S or on a stream that waited for S since (the kernel is
  ordered behind the copy; on any other stream it meets the poison);
- when the host waits for S: `synchronize` of the stream, the device or an event recorded later, a
  blocking copy or `.item()` on a stream that is ordered behind it.

A copy to the host shows its values only in the second case: a kernel's order means nothing to the
host, which reads memory whenever it likes.

Which copies are asynchronous, and when their source is read, follows torch's
aten/src/ATen/native/cuda/Copy.cu and "API synchronization behavior" in CUDA's manual:

- from pinned memory with the destination's layout: asynchronous, the source is read late;
- from pageable memory, or through a temporary: the source is read at once, the copy lands late;
- to pinned memory with the source's layout (`.to("cpu", non_blocking=True)` allocates it): late;
- to pageable memory, or through a temporary: blocking, whatever `non_blocking` says;
- between devices: a kernel.

Pinned memory that is dropped while a copy reads it is kept by torch's host allocator until the copy
is done, so dropping it is no mistake and none is shown. Device memory goes back to the stream that
allocated it: a copy on another stream reads poison unless `record_stream` told the allocator. So
does a copy to the host on a stream that is not ordered behind the kernel that wrote what it reads.
"""

import weakref
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from devicekit.testing.simulation import order, private, state
from devicekit.testing.simulation.order import Key, Point
from devicekit.testing.simulation.tensors import (
    cpu_storage,
    device_index,
    is_on_device,
    to_cpu,
)
from devicekit.tree import dtype_and_shape

__all__ = [
    "allocated",
    "before_kernel",
    "copy",
    "finish",
    "host_read",
    "is_reached",
    "poison",
    "record_stream",
    "settle",
]

# ------------------------------------------------------------------ copies that have not landed


class _Place:
    """Where a late copy reads or writes: bytes that it may or may not keep alive."""

    def __init__(self, x: torch.Tensor, keep: bool) -> None:
        storage = x.untyped_storage()
        self.pointer = storage.data_ptr()
        self.on_device = is_on_device(x)
        self.geometry = x.storage_offset(), x.size(), x.stride()
        self.dtype, self.is_conj, self.is_neg = x.dtype, x.is_conj(), x.is_neg()
        self.storage = weakref.ref(storage)
        self.kept = storage if keep else None

    def tensor(self) -> torch.Tensor | None:
        """Return the CPU tensor over the bytes, None if they were freed."""
        storage = self.storage()
        if storage is None:
            return None
        x = torch.empty(0, dtype=self.dtype, device="cpu")
        x.set_(cpu_storage(storage) if self.on_device else storage, *self.geometry)
        if self.is_conj:
            private.set_conj(x, True)
        if self.is_neg:
            private.set_neg(x, True)
        return x


@dataclass(eq=False, slots=True)
class _Late:
    """A copy that was issued and has not landed."""

    issued: tuple[Key, int]
    target: _Place
    source: _Place | torch.Tensor
    to_host: bool
    value: torch.Tensor | None = None
    """What a copy to the host has read, once that is fixed but the host has not waited."""

    def uses(self, pointers: Container[int]) -> bool:
        if self.target.pointer in pointers:
            return True
        return isinstance(self.source, _Place) and self.source.pointer in pointers


@dataclass(eq=False, slots=True)
class _Unwaited:
    """A copy from pinned memory that a kernel made land, but that the host has not waited for."""

    issued: tuple[Key, int]
    source: _Place
    value: torch.Tensor


_late: list[_Late] = []
_unwaited: list[_Unwaited] = []
_MOST_UNWAITED = 64


def _is_before(issued: tuple[Key, int], point: Point) -> bool:
    key, tick = issued
    return tick <= point.get(key, 0)


def is_reached(point: Point) -> bool:
    """Whether no copy before a point is still to land."""
    return not any(_is_before(late.issued, point) for late in _late)


def poison(x: torch.Tensor) -> None:
    """Fill a CPU tensor with what must not be used: NaN, or the largest value of the type."""
    if x.dtype == torch.bool:
        x.fill_(True)
    elif x.dtype.is_floating_point or x.dtype.is_complex:
        x.fill_(float("nan"))
    else:
        x.fill_(torch.iinfo(x.dtype).max)


def _poisoned(like: torch.Tensor) -> torch.Tensor:
    made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
    poison(made)
    return made


def _read(late: _Late) -> torch.Tensor:
    """Return what the source holds now."""
    if isinstance(late.source, torch.Tensor):
        return late.source
    found = late.source.tensor()
    if found is not None:
        return found
    return _poisoned(torch.empty(late.source.geometry[1], dtype=late.source.dtype, device="meta"))


# ------------------------------------------------------------------ landing


def _land(late: _Late, *, host_waits: bool) -> None:
    """Let a copy happen, as far as a kernel can tell, or with `host_waits` the host."""
    if late.to_host and not host_waits:
        if late.value is None:
            late.value = _read(late).clone()
        return
    value = late.value if late.value is not None else _read(late)
    target = late.target.tensor()
    if target is not None:
        target.copy_(value)
    _late.remove(late)
    if not host_waits and isinstance(late.source, _Place):
        _unwaited.append(_Unwaited(late.issued, late.source, value.clone()))
        del _unwaited[:-_MOST_UNWAITED]


def settle(point: Point) -> None:
    """Let everything up to a point land: the host waits for it.

    Raises:
        RuntimeError: The host changed a pinned buffer before it waited for a copy out of it.
    """
    with order.lock:
        order.merge(order.done, point)
        if not _late and not _unwaited:
            return
        with torch.no_grad(), private.DisableTorchFunction():
            for late in [*_late]:
                if _is_before(late.issued, point):
                    _land(late, host_waits=True)
            waited = [x for x in _unwaited if _is_before(x.issued, point)]
            _unwaited[:] = [x for x in _unwaited if x not in waited]
            for unwaited in waited:
                _check_unchanged(unwaited)


def _check_unchanged(unwaited: _Unwaited) -> None:
    now = unwaited.source.tensor()
    if now is None or torch.equal(_bytes(now), _bytes(unwaited.value)):
        return
    device = state.shown(state.device(unwaited.issued[0][0]))
    raise RuntimeError(
        f"a pinned buffer ({dtype_and_shape(now)}) was changed while a non_blocking copy from it "
        f"to {device} may still have been reading it: a kernel that uses the copy was issued, but "
        f"nothing made the host wait, so on a GPU the copy may carry the new values. Record an "
        f"event after the copy and call its `.synchronize()` before the buffer is filled again"
    )


def _forget_unwaited(pointer: int, point: Point) -> None:
    _unwaited[:] = [
        x for x in _unwaited if x.source.pointer != pointer or not _is_before(x.issued, point)
    ]


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _touch(tensors: Iterable[torch.Tensor]) -> None:
    """Let the copies land that the current stream of each tensor's device is ordered behind."""
    used: dict[Key, set[int]] = {}
    for x in tensors:
        if x.layout is torch.strided and is_on_device(x):
            key = order.current(device_index(x))
            used.setdefault(key, set()).add(x.untyped_storage().data_ptr())
    _land_behind(used)


def _land_behind(used: dict[Key, set[int]]) -> None:
    """Let the copies land that use some memory and that a stream is ordered behind."""
    with order.lock, torch.no_grad(), private.DisableTorchFunction():
        for key, pointers in used.items():
            point = order.here(key)
            wanted = []
            read: set[int] = set()
            # Backwards, so that what a copy reads from an earlier one is wanted as well.
            for late in reversed(_late):
                if _is_before(late.issued, point) and late.uses(pointers | read):
                    wanted.append(late)
                    if isinstance(late.source, _Place):
                        read.add(late.source.pointer)
            for late in reversed(wanted):
                _land(late, host_waits=late.to_host and late.target.pointer in read)


# ------------------------------------------------------------------ what the engine calls


def before_kernel(reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> None:
    """Let the copies land that a kernel on the current stream is ordered behind.

    Args:
        reads: The tensors that it reads.
        writes: The tensors that it writes.
    """
    if _late:
        _touch([*reads, *writes])
    on_device = [x for x in (*writes, *reads) if is_on_device(x)]
    key = order.current(device_index(on_device[0]) if on_device else None)
    issued = key, order.advance(key)
    for x in writes:
        if x.layout is torch.strided and is_on_device(x):
            x.untyped_storage()._written = issued  # type: ignore[attr-defined]


def allocated(storage: torch.UntypedStorage, index: int) -> None:
    """Note the stream that a block of device memory belongs to, and that its kernel writes it."""
    key = order.current(index)
    storage._stream = key  # type: ignore[attr-defined]
    storage._written = key, order.here(key)[key]  # type: ignore[attr-defined]


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> bool:
    """Take over a copy that lands late.

    Args:
        target: Where to, on the host or on a simulated device.
        source: Where from.
        non_blocking: Whether the caller asked not to wait.

    Returns:
        Whether it was taken over; else the engine copies now.
    """
    if target.layout is not torch.strided or source.layout is not torch.strided:
        return False
    to_host, from_host = not is_on_device(target), not is_on_device(source)
    if not to_host and not from_host:
        _order_both_ways(device_index(target), device_index(source))
        return False
    key = order.current(device_index(source if to_host else target))
    used = {x.untyped_storage().data_ptr() for x in (source, target) if is_on_device(x) or to_host}
    _land_behind({key: used})
    if to_host:
        # This copy changes the memory in its turn, and no earlier one on the stream minds.
        _forget_unwaited(target.untyped_storage().data_ptr(), order.here(key))
    direct = _needs_no_temporary(target, source, on_host=target if to_host else source)
    pinned = (target if to_host else source).is_pinned()
    if not non_blocking or (to_host and not (pinned and direct)):
        settle(order.here(key))
        return False
    if target.numel() == 0:
        return True
    with order.lock, torch.no_grad(), private.DisableTorchFunction():
        read_from: _Place | torch.Tensor
        if not from_host:
            read_from = _on_device(source, key)
        elif pinned and direct:
            read_from = _Place(source, keep=True)
        else:
            read_from = source.clone()
        issued = key, order.advance(key)
        _late[:] = [x for x in _late if x.target.storage() is not None]
        _late.append(_Late(issued, _Place(target, keep=to_host), read_from, to_host))
        poison(target if to_host else to_cpu(target))
        if from_host:
            target.untyped_storage()._written = issued  # type: ignore[attr-defined]
    return True


def _order_both_ways(one: int, other: int) -> None:
    """Order the current streams of two devices behind each other, as a copy between them does."""
    if one == other:
        return
    mine, yours = order.current(one), order.current(other)
    order.wait(mine, order.here(yours))
    order.wait(yours, order.here(mine))


def _needs_no_temporary(target: torch.Tensor, source: torch.Tensor, on_host: torch.Tensor) -> bool:
    """Whether the host's memory is copied as it is; a conversion happens on the device."""
    if target.shape != source.shape:
        return False
    if target.dtype != source.dtype or target.is_conj() != source.is_conj():
        return on_host.is_contiguous()
    if target.is_contiguous() and source.is_contiguous():
        return True
    return target.stride() == source.stride() and _is_dense(target)


def _is_dense(x: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _on_device(x: torch.Tensor, key: Key) -> _Place | torch.Tensor:
    """Return where a copy on a stream reads a device tensor, or what it may find there."""
    storage = x.untyped_storage()
    home = getattr(storage, "_stream", (device_index(x), 0))
    written = getattr(storage, "_written", (home, 0))
    if not order.is_behind(key, written):
        return _poisoned(x)
    return _Place(x, keep=home == key or key in getattr(storage, "_used_by", ()))


def record_stream(x: torch.Tensor, stream: torch.Stream) -> None:
    """Keep the memory of a tensor from being used again before a stream is done with it."""
    key = (int(stream.device_index), int(stream.stream_id))
    storage: Any = x.untyped_storage()
    storage._used_by = {*getattr(storage, "_used_by", ()), key}
    for late in _late:
        source = late.source
        if late.issued[0] == key and isinstance(source, _Place) and source.storage() is storage:
            source.kept = storage


def host_read(index: int) -> None:
    """Wait as the host does before it reads a value: for the current stream of the device."""
    settle(order.here(order.current(index)))


def finish() -> None:
    """Let everything land, at the end of a simulation.

    Raises:
        RuntimeError: As `settle`.
    """
    everything: Point = {}
    for issued in [*(x.issued for x in _late), *(x.issued for x in _unwaited)]:
        order.merge(everything, dict([issued]))
    try:
        settle(everything)
    finally:
        _late.clear()
        _unwaited.clear()
