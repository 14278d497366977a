"""Streams, events, and copies that land late.

Kernels of the simulation run at once, on the calling thread. With `async_copies=True` a copy between
host and device that CUDA would do asynchronously does not: until the copy has landed its destination
holds poison (NaN, or the largest value of the type), and the source is read when it lands.

A copy on stream S lands

- before a kernel that uses its tensors, on S or on a stream that waited for S since (the kernel is
  ordered behind the copy; on any other stream it meets the poison);
- when the host waits for S: `synchronize` of the stream, the device or an event recorded later, a
  blocking copy or `.item()` on a stream that is ordered behind it.

A copy to the host shows its values only in the second case: a kernel's order means nothing to the
host, which reads memory whenever it likes.

Which copies are asynchronous, and when their source is read, follows `aten/src/ATen/native/cuda/Copy.cu`
and CUDA's "API synchronization behavior":

- from pinned memory with the destination's layout: asynchronous, the source is read late;
- from pageable memory, or where torch makes a temporary: the source is read at once, the copy is late;
- to pinned memory with the source's layout (`.to("cpu", non_blocking=True)` allocates it): late;
- to pageable memory, or through a temporary: blocking, whatever `non_blocking` says;
- between devices: a kernel.

Pinned memory that is dropped while a copy reads it is kept by torch's host allocator until the copy is
done, so dropping it is no bug and none is shown. Device memory is not kept: it goes back to the stream
that allocated it, so a copy on another stream reads poison unless `record_stream` told the allocator.
"""

import itertools
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.tensors import cpu_storage, is_on_device, to_cpu

__all__ = [
    "AnyEvent",
    "AnyStream",
    "Event",
    "Stream",
    "StreamContext",
    "before_kernel",
    "copy",
    "current_stream",
    "default_stream",
    "finish",
    "record_stream",
    "set_stream",
    "synchronize",
]

Key = tuple[int, int]
"""A stream: the index of its device and its id; id 0 is the default stream."""

POOL = 32
"""Streams per device and priority; torch hands the same ones out again after that many."""

_TorchStream: Any = torch.Stream
_TorchEvent: Any = torch.Event

_lock = threading.RLock()
_next_id: dict[tuple[int, bool], Any] = {}


class _Local(threading.local):
    """The current stream of each device, for each thread."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}


_local = _Local()


# ------------------------------------------------------------------ order
#
# Only copies can be late, so they are all that order is about: a point in a stream's work is how many
# copies had been issued there, and what is ordered behind what is one such number for each stream.

_issued: dict[Key, int] = {}
_past: dict[Key, dict[Key, int]] = {}


def _here(key: Key) -> dict[Key, int]:
    """Return the copies that come before whatever is issued on the stream next."""
    return {**_past.get(key, {}), key: _issued.get(key, 0)}


def _wait(key: Key, point: dict[Key, int]) -> None:
    """Order all later work of a stream behind a point."""
    past = _past.setdefault(key, {})
    for other, tick in point.items():
        if other != key and tick > past.get(other, 0):
            past[other] = tick


def _current_key(index: int) -> Key:
    return index, _local.streams.get(index, 0)


# ------------------------------------------------------------------ copies that have not landed


class _Place:
    """Where a late copy reads or writes: bytes that it may or may not keep alive."""

    def __init__(self, x: torch.Tensor, keep: bool) -> None:
        storage = x.untyped_storage()
        self.pointer = storage.data_ptr()
        self.on_device = is_on_device(x)
        self.meta = x.storage_offset(), x.size(), x.stride()
        self.dtype, self.bits = x.dtype, (x.is_conj(), x.is_neg())
        self.storage = weakref.ref(storage)
        self.kept = storage if keep else None

    def tensor(self) -> torch.Tensor | None:
        """Return the CPU tensor over the bytes, None if they were freed."""
        storage = self.storage()
        if storage is None:
            return None
        x = torch.empty(0, dtype=self.dtype, device="cpu")
        x.set_(cpu_storage(storage) if self.on_device else storage, *self.meta)
        if self.bits[0]:
            private.set_conj(x, True)
        if self.bits[1]:
            private.set_neg(x, True)
        return x


@dataclass(eq=False, slots=True)
class _Late:
    """A copy that was issued and has not landed."""

    stream: Key
    tick: int
    target: _Place
    source: _Place | torch.Tensor
    to_host: bool
    value: torch.Tensor | None = None
    """What a copy to the host has read, once that is fixed but the host has not waited."""

    def uses(self, pointers: Iterable[int]) -> bool:
        source = self.source.pointer if isinstance(self.source, _Place) else 0
        return self.target.pointer in pointers or source in pointers


@dataclass(eq=False, slots=True)
class _Unwaited:
    """A copy from pinned memory that a kernel made land, while no host call has waited for it yet."""

    stream: Key
    tick: int
    source: _Place
    value: torch.Tensor


_late: list[_Late] = []
_unwaited: list[_Unwaited] = []
UNWAITED = 64
"""How many copies are remembered at most whose pinned source must stay as it is."""


def poison(x: torch.Tensor) -> None:
    """Fill a CPU tensor with what must not be used: NaN, or the largest value of the type."""
    if x.dtype == torch.bool:
        x.fill_(True)
    elif x.dtype.is_floating_point or x.dtype.is_complex:
        x.fill_(float("nan"))
    else:
        x.fill_(torch.iinfo(x.dtype).max)


def _read(late: _Late) -> torch.Tensor:
    """Return what the source holds now."""
    if isinstance(late.source, torch.Tensor):
        return late.source
    found = late.source.tensor()
    if found is not None:
        return found
    freed = torch.empty(late.source.meta[1], dtype=late.source.dtype, device="cpu")
    poison(freed)
    return freed


def _land(late: _Late, *, host_waits: bool) -> None:
    """Let a copy happen, as far as it can be told from a kernel or, `host_waits`, from the host."""
    if late.to_host and not host_waits:
        if late.value is None:
            late.value = _read(late).clone()
        return
    value = late.value if late.value is not None else _read(late)
    target = late.target.tensor()
    if target is not None:
        target.copy_(value)
    _late.remove(late)
    if host_waits or not isinstance(late.source, _Place):
        return
    _unwaited.append(_Unwaited(late.stream, late.tick, late.source, value.clone()))
    del _unwaited[:-UNWAITED]


def _settle(point: dict[Key, int]) -> None:
    """Let everything up to a point land: the host waits for it."""
    if not _late and not _unwaited:
        return
    with _lock, torch.no_grad(), private.DisableTorchFunction():
        for late in [*_late]:
            if late.tick <= point.get(late.stream, 0):
                _land(late, host_waits=True)
        done = [x for x in _unwaited if x.tick <= point.get(x.stream, 0)]
        _unwaited[:] = [x for x in _unwaited if x.tick > point.get(x.stream, 0)]
        for unwaited in done:
            _check_unchanged(unwaited)


def _check_unchanged(unwaited: _Unwaited) -> None:
    """Check that the host left a pinned buffer alone until it had waited for the copy out of it."""
    now = unwaited.source.tensor()
    if now is None or torch.equal(now.nan_to_num(), unwaited.value.nan_to_num()):
        return
    kind = str(now.dtype).removeprefix("torch.")
    raise RuntimeError(
        f"a pinned buffer was changed while a non_blocking copy may still have been reading it: "
        f"{kind}{list(now.shape)}, copied to {state.shown(state.device(unwaited.stream[0]))}. "
        f"A kernel that uses the copy was issued, but nothing made the host wait, so on a GPU the "
        f"copy may carry the new values. Record an event after the copy and call its "
        f"`.synchronize()` before the buffer is filled again"
    )


def _touch(tensors: Iterable[torch.Tensor]) -> None:
    """Let the copies land that the current stream of each tensor's device is ordered behind."""
    pointers: dict[Key, set[int]] = {}
    for x in tensors:
        if x.layout is torch.strided and is_on_device(x):
            key = _current_key(x.get_device())
            pointers.setdefault(key, set()).add(x.untyped_storage().data_ptr())
    with _lock, torch.no_grad(), private.DisableTorchFunction():
        for key, used in pointers.items():
            point = _here(key)
            # Backwards, so that what a copy reads from an earlier one is wanted as well.
            wanted = []
            for late in reversed(_late):
                if late.tick <= point.get(late.stream, 0) and late.uses(used):
                    wanted.append(late)
                    if isinstance(late.source, _Place):
                        used.add(late.source.pointer)
            for late in reversed(wanted):
                _land(late, host_waits=False)


# ------------------------------------------------------------------ what the engine calls


def before_kernel(reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> None:
    """Let the copies land that a kernel on the current stream is ordered behind.

    Args:
        reads: The tensors that it reads.
        writes: The tensors that it writes.
    """
    if _late:
        _touch(itertools.chain(reads, writes))


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
    before_kernel((source,), (target,))
    if not to_host and not from_host:
        return False
    if target.numel() == 0:
        return False
    on_device, on_host = (source, target) if to_host else (target, source)
    key = _current_key(on_device.get_device())
    plain = target.dtype == source.dtype and _same_layout(target, source)
    # A conversion happens on the device and needs no temporary on the host if that is contiguous.
    direct = plain or (target.shape == source.shape and on_host.is_contiguous())
    pinned = on_host.is_pinned()
    if not non_blocking or (to_host and not (pinned and direct)):
        _settle(_here(key))
        return False
    with _lock, torch.no_grad(), private.DisableTorchFunction():
        if from_host:
            late = source.expand_as(target).clone() if not (pinned and direct) else None
            where = _Place(source.expand_as(target), keep=True) if late is None else late
        else:
            where = _Place(source, keep=_outlives(source, key))
        tick = _issued[key] = _issued.get(key, 0) + 1
        _late[:] = [x for x in _late if x.target.storage() is not None]
        _late.append(_Late(key, tick, _Place(target, keep=to_host), where, to_host))
        poison(target if to_host else to_cpu(target))
    return True


def _same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether torch copies the two as one block of memory."""
    if a.shape != b.shape or a.is_conj() != b.is_conj() or a.is_neg() != b.is_neg():
        return False
    if a.is_contiguous() and b.is_contiguous():
        return True
    return a.stride() == b.stride() and _is_dense(a)


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


def _outlives(x: torch.Tensor, key: Key) -> bool:
    """Whether device memory stays valid for a stream after the last tensor over it is gone."""
    storage = x.untyped_storage()
    home = getattr(storage, "_stream", (x.get_device(), 0))
    return home == key or key in getattr(storage, "_used_by", ())


def allocated(storage: torch.UntypedStorage, index: int) -> None:
    """Note the stream that a block of device memory belongs to."""
    storage._stream = _current_key(index)  # type: ignore[attr-defined]


def record_stream(x: torch.Tensor, stream: torch.Stream) -> None:
    """Keep the memory of a tensor from being used again before a stream is done with it."""
    key = (int(stream.device_index), int(stream.stream_id))
    storage: Any = x.untyped_storage()
    storage._used_by = {*getattr(storage, "_used_by", ()), key}
    for late in _late:
        if late.stream == key and isinstance(late.source, _Place):
            if late.source.pointer == storage.data_ptr():
                late.source.kept = storage


def wait_for_host_read(index: int) -> None:
    """Wait as the host does before it reads a value: for the current stream of the device."""
    _settle(_here(_current_key(index)))


def finish() -> None:
    """Let everything land and forget all order, at the end of a simulation."""
    try:
        _settle({late.stream: late.tick for late in _late})
    finally:
        for table in (_late, _unwaited, _issued, _past, _next_id):
            table.clear()
        _local.streams.clear()


# ------------------------------------------------------------------ streams


class Stream(_TorchStream):  # type: ignore[misc]
    """A stream of a simulated device: `torch.sim.Stream`, and `torch.cuda.Stream` under that name.

    Args:
        device: The device; default the current one.
        priority: Any number; negative ones come from another pool, as on CUDA.
        stream_id: With `device_index`: the stream with this id, as torch rebuilds one.
        device_index: The index of the device.
        device_type: Not used.
    """

    def __new__(
        cls,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
    ) -> "Stream":
        """Take a stream from the pool, or the one with the given id."""
        if stream_id is None or device_index is None:
            device_index = state.resolve(device)
            first = 1 + (POOL if priority < 0 else 0)
            with _lock:
                ids = _next_id.setdefault(
                    (device_index, priority < 0), itertools.cycle(range(first, first + POOL))
                )
                stream_id = next(ids)
        kind = private.DeviceType.PrivateUse1
        made = super().__new__(
            cls, stream_id=stream_id, device_index=device_index, device_type=kind.value
        )
        return made  # type: ignore[no-any-return]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def _key(self) -> Key:
        return int(self.device_index), int(self.stream_id)

    @property
    def device(self) -> torch.device:
        """The device as the user sees it."""
        return state.shown(state.device(int(self.device_index)))

    @property
    def priority(self) -> int:
        """-1 for a stream of high priority, else 0."""
        return -1 if self.stream_id > POOL else 0

    @property
    def cuda_stream(self) -> int:
        """A number that stands for the handle: 0 for the default stream. No CUDA library knows it."""
        return int(self.stream_id)

    def wait_event(self, event: Any) -> None:
        """Order later work of this stream behind an event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Order later work of this stream behind all work issued on another one so far."""
        _wait(self._key, _here(_key_of(stream)))

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one if none is given, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all is done; asking lets time pass, so that the next answer is True."""
        return _query(_here(self._key))

    def synchronize(self) -> None:
        """Wait until all work issued on this stream is done."""
        _settle(_here(self._key))

    def is_capturing(self) -> bool:
        """False: the simulation has no graphs."""
        return False

    def __enter__(self) -> "Stream":
        """Make this the current stream of its device, and that the current device."""
        stack = self.__dict__.setdefault("_entered", [])
        index = int(self.device_index)
        stack.append((state.current.index, _local.streams.get(index, 0)))
        set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        index, previous = self.__dict__["_entered"].pop()
        _local.streams[int(self.device_index)] = previous
        state.current.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TorchStream) and self._key == _key_of(other)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        name = self.device.type
        return f"<torch.{name}.Stream device={self.device} {name}_stream={self.cuda_stream:#x}>"


def _key_of(stream: Any) -> Key:
    return int(stream.device_index), int(stream.stream_id)


def _query(point: dict[Key, int]) -> bool:
    """Say whether a point is reached, then let it be: a loop that polls must come to its end."""
    done = not any(late.tick <= point.get(late.stream, 0) for late in _late)
    _settle(point)
    return done


def current_stream(device: Any = None) -> Stream:
    """Return the calling thread's current stream of a device, default the current one."""
    index, stream_id = _current_key(state.resolve(device))
    return Stream(stream_id=stream_id, device_index=index)


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a device, default the current one."""
    return Stream(stream_id=0, device_index=state.resolve(device))


def set_stream(stream: Any) -> None:
    """Make a stream the current one of its device, and that device the current one."""
    if stream is None:
        return
    index, stream_id = _key_of(stream)
    state.current.index = index
    _local.streams[index] = stream_id


def synchronize(device: Any = None) -> None:
    """Wait until all work on a device is done, default the current one."""
    index = state.resolve(device)
    point: dict[Key, int] = {}
    for key in [key for key in _issued if key[0] == index]:
        for other, tick in _here(key).items():
            point[other] = max(tick, point.get(other, 0))
    _settle(point)


class StreamContext:
    """The context manager that `torch.sim.stream(s)` returns; None selects nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*exc)


# ------------------------------------------------------------------ events


class Event(_TorchEvent):  # type: ignore[misc]
    """An event: a point in the work of a stream, and the time the host passed it."""

    def __new__(
        cls,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> "Event":
        """Make an event; `blocking`, `interprocess` and `external` change nothing here."""
        made = super().__new__(cls, device=state.backend, enable_timing=enable_timing)
        made._point = None
        made._time = None
        made._timing = enable_timing
        return made  # type: ignore[no-any-return]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    _point: dict[Key, int] | None
    _index: int | None = None

    @property
    def device(self) -> torch.device | None:
        """The device of the stream it was recorded on, as the user sees it; None before."""
        return None if self._index is None else state.shown(state.device(self._index))

    @property
    def cuda_event(self) -> int:
        """A number that stands for the handle: 0 before the event is recorded."""
        return 0 if self._point is None else id(self)

    def record(self, stream: Any = None) -> None:
        """Mark the point that a stream has come to, default the current one.

        Raises:
            RuntimeError: The event was recorded on another device before.
        """
        key = _current_key(state.current.index) if stream is None else _key_of(stream)
        if self._index is not None and self._index != key[0]:
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device {key[0]}."
            )
        self._index = key[0]
        self._point = _here(key)
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Order later work of a stream, default the current one, behind this event."""
        if self._point is None:
            return
        key = _current_key(state.current.index) if stream is None else _key_of(stream)
        _wait(key, self._point)

    def query(self) -> bool:
        """Whether the event is reached; asking lets time pass, so that the next answer is True."""
        return self._point is None or _query(self._point)

    def synchronize(self) -> None:
        """Wait until the event is reached."""
        if self._point is not None:
            _settle(self._point)

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds of host time between two recorded events.

        Raises:
            ValueError: One was made without `enable_timing` or not recorded, in torch's words.
            RuntimeError: One is not reached yet.
        """
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or end_event._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        for event in (self, end_event):
            if any(late.tick <= event._point.get(late.stream, 0) for late in _late):
                raise RuntimeError("CUDA error: device not ready")
        return float(end_event._time - self._time) * 1e3

    def ipc_handle(self) -> bytes:
        """Refuse: the simulation shares no events between processes."""
        raise NotImplementedError("the simulated accelerator shares no events between processes")

    def __repr__(self) -> str:
        name = state.config.name if state.config is not None else state.backend
        if self._point is None:
            return f"<torch.{name}.Event uninitialized>"
        return f"<torch.{name}.Event {self.cuda_event:#x}>"


# ------------------------------------------------------------------ torch.Stream and torch.Event


def _is_simulated(device: Any) -> bool:
    """Whether `torch.Stream(device)` asks for the simulated device."""
    if device is None or isinstance(device, int):
        return True
    return torch.device(device).type in (state.backend, state.active().name)


class _AnyStreamType(type(_TorchStream)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchStream)


class AnyStream(_TorchStream, metaclass=_AnyStreamType):  # type: ignore[misc]
    """What `torch.Stream` is while a simulation is active."""

    def __new__(cls, device: Any = None, **kwargs: Any) -> Any:
        """Make a simulated stream, or torch's own for another device."""
        if not _is_simulated(device):
            return _TorchStream(device, **kwargs)
        return Stream(device, **kwargs)


class _AnyEventType(type(_TorchEvent)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchEvent)


class AnyEvent(_TorchEvent, metaclass=_AnyEventType):  # type: ignore[misc]
    """What `torch.Event` is while a simulation is active."""

    def __new__(cls, device: Any = None, **kwargs: Any) -> Any:
        """Make a simulated event, or torch's own for another device."""
        if not _is_simulated(device):
            return _TorchEvent(device, **kwargs)
        return Event(device, **kwargs)
