"""Streams and events of the simulated accelerator, and what `torch.Stream` is meanwhile.

Kernels run at once, so a stream has little to do: it says what is ordered behind what (`order`),
which matters to copies that land late (`late`).
"""

import time
from typing import Any

import torch

from devicekit.testing.simulation import late, order, private, state
from devicekit.testing.simulation.order import Key, Point

__all__ = [
    "AnyEvent",
    "AnyStream",
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "synchronize",
]

_TorchStream: Any = torch.Stream
_TorchEvent: Any = torch.Event


def _key_of(stream: Any) -> Key:
    return int(stream.device_index), int(stream.stream_id)


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
            device_index, stream_id = order.new_stream(state.resolve(device), priority)
        kind = private.DeviceType.PrivateUse1
        return super().__new__(  # type: ignore[no-any-return]
            cls, stream_id=stream_id, device_index=device_index, device_type=kind.value
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def _key(self) -> Key:
        return _key_of(self)

    @property
    def device(self) -> torch.device:
        """The device as the user sees it."""
        return state.shown(state.device(int(self.device_index)))

    @property
    def priority(self) -> int:
        """-1 for a stream of high priority, else 0."""
        return -1 if self.stream_id > order.POOL else 0

    @property
    def cuda_stream(self) -> int:
        """A number that stands for the handle: 0 for the default stream."""
        return int(self.stream_id)

    def wait_event(self, event: Any) -> None:
        """Order later work of this stream behind an event."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Order later work of this stream behind all work issued on another one so far."""
        order.wait(self._key, order.here(_key_of(stream)))

    def record_event(self, event: Any = None) -> Any:
        """Record an event, a new one if none is given, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all is done; asking lets time pass, so that the next answer is True."""
        return _query(order.here(self._key))

    def synchronize(self) -> None:
        """Wait until all work issued on this stream is done."""
        late.settle(order.here(self._key))

    def is_capturing(self) -> bool:
        """False: the simulation has no graphs."""
        return False

    def __enter__(self) -> "Stream":
        """Make this the current stream of its device, and that the current device."""
        stack = self.__dict__.setdefault("_entered", [])
        stack.append((state.current.index, order.current(int(self.device_index))))
        set_stream(self)
        return self

    def __exit__(self, *exc: object) -> None:
        index, previous = self.__dict__["_entered"].pop()
        order.set_current(previous)
        state.current.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TorchStream) and self._key == _key_of(other)

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        name = self.device.type
        return f"<torch.{name}.Stream device={self.device} {name}_stream={self.cuda_stream:#x}>"


def _query(point: Point) -> bool:
    """Say whether a point is reached, then let it be: a loop that polls must come to its end."""
    reached = late.is_reached(point)
    late.settle(point)
    return reached


def current_stream(device: Any = None) -> Stream:
    """Return the calling thread's current stream of a device, default the current one."""
    index, stream_id = order.current(state.resolve(device))
    return Stream(stream_id=stream_id, device_index=index)


def default_stream(device: Any = None) -> Stream:
    """Return the default stream of a device, default the current one."""
    return Stream(stream_id=0, device_index=state.resolve(device))


def set_stream(stream: Any) -> None:
    """Make a stream the current one of its device, and that device the current one."""
    if stream is None:
        return
    key = _key_of(stream)
    state.current.index = key[0]
    order.set_current(key)


def synchronize(device: Any = None) -> None:
    """Wait until all work on a device is done, default the current one."""
    late.settle(order.of_device(state.resolve(device)))


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

    _point: Point | None
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
        key = order.current() if stream is None else _key_of(stream)
        if self._index is not None and self._index != key[0]:
            raise RuntimeError(
                f"Event device {self._index} does not match recording stream's device {key[0]}."
            )
        self._index = key[0]
        self._point = order.here(key)
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Order later work of a stream, default the current one, behind this event."""
        if self._point is None:
            return
        key = order.current() if stream is None else _key_of(stream)
        order.wait(key, self._point)

    def query(self) -> bool:
        """Whether the event is reached; asking lets time pass, so that the next answer is True."""
        return self._point is None or _query(self._point)

    def synchronize(self) -> None:
        """Wait until the event is reached."""
        if self._point is not None:
            late.settle(self._point)

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
        if not (late.is_reached(self._point or {}) and late.is_reached(end_event._point or {})):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
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
