"""Batches on the device before they are asked for: the copy runs beside the computation.

The schedule, with S the side stream and C the stream that the consumer's work goes to:

1. the next batch's memory is allocated on C, so that it belongs to the consumer's pool;
2. S waits for C, as that memory may still be in use by work that C has queued;
3. the copy runs on S, and an event marks its end;
4. all this is issued *before* the current batch is handed out, so that it overlaps the step on it;
5. C waits for the event of the batch that is handed out;
6. the host's copy of a batch is held until its event is done, and of no more than `depth + 2`
   batches: a host that runs ahead further waits;
7. at the end, however it comes, the host waits for what is still in flight.

No `record_stream` is needed, and at most `depth + 2` batches are on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from devicekit.device import Device
from devicekit.errors import DeviceUnavailableError
from devicekit.move import to_device
from devicekit.packing import Packed, unpack
from devicekit.pin import is_dense_host_memory, pin_where_possible
from devicekit.probe import probe
from devicekit.tree import mapped_in_two_steps

__all__ = ["Prefetcher", "StreamBackend", "prefetch_to_device", "run_schedule"]

T = TypeVar("T")


class StreamBackend(Protocol):
    """What the schedule needs from a device: the real one, or a model of it."""

    side: Any
    """The stream that copies run on."""

    def consumer(self) -> Any:
        """The stream that the caller's work goes to at this moment."""

    def allocate(self, batch: Any) -> tuple[Callable[[], Any], Any]:
        """Allocate `batch` on the device for the consumer.

        Returns:
            A function that builds the batch, once the consumer waits for the copies; and what
            `copy` needs.
        """

    def copy(self, plan: Any, stream: Any) -> None:
        """Queue on `stream` the copies that fill what `allocate` made."""

    def record(self, stream: Any) -> Any:
        """Mark this point of `stream`; return the event."""

    def wait(self, stream: Any, event: Any) -> None:
        """Make later work of `stream` wait for `event`; the host goes on."""

    def is_done(self, event: Any) -> bool:
        """Whether `event` has happened."""

    def synchronize(self, event: Any) -> None:
        """Make the host wait for `event`."""


def prefetch_to_device(
    iterable: Iterable[T], device: str | torch.device | None = "auto", depth: int = 1
) -> Prefetcher[T]:
    """Wrap an iterable of batches so that it yields them on `device`, copied ahead of time.

    While the accelerator computes on one batch, the next is on its way. Tensors that are not in
    pinned memory are pinned first, in the caller's thread; a loader that pins them in its own is
    faster. Same batches, same order, and an exception comes at the place where the iterable raised
    it. On the CPU and on MPS it is `to_device` on each batch, with nothing ahead.

    Args:
        iterable: Batches in any structure that `to_device` knows; from `pack`, they are unpacked.
        device: Where the batches go.
        depth: How many batches are on their way beside the current one; up to `depth + 2` take
            memory on the device. More than 1 only helps against an uneven loader.

    Returns:
        An iterable; each `iter` starts the wrapped one anew, and `len` is that of the wrapped one.

    Raises:
        ValueError: `depth` is less than 1.
        TypeError: `depth` is no int.

    Example:
        >>> import torch
        >>> from devicekit import prefetch_to_device
        >>> for x, y in prefetch_to_device([(torch.ones(2), torch.zeros(1))], "cpu"):
        ...     print(x.device, y)
        cpu tensor([0.])
    """
    return Prefetcher(iterable, device, depth)


class Prefetcher(Generic[T]):
    """What `prefetch_to_device` returns."""

    def __init__(
        self, iterable: Iterable[T], device: str | torch.device | None, depth: int
    ) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int):
            raise TypeError(f"`depth` must be an int, but it is {depth!r}")
        if depth < 1:
            raise ValueError(f"`depth` must be at least 1, but it is {depth!r}")
        self.iterable = iterable
        self.device = Device(device)
        self.depth = depth
        self._backend: StreamBackend | None = None

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Generator[T, None, None]:
        if not _has_streams(self.device):
            return self._plain()
        if self._backend is None:  # once: each stream has a pool of memory of its own
            self._backend = TorchBackend(self.device.torch)
        return run_schedule(self.iterable, self._backend, self.depth)

    def _plain(self) -> Generator[T, None, None]:
        for batch in self.iterable:
            yield to_device(_opened(batch), self.device)


def run_schedule(
    iterable: Iterable[Any], backend: StreamBackend, depth: int
) -> Generator[Any, None, None]:
    """Yield the batches of `iterable` on the device, in the order of the module's docstring."""
    source = iter(iterable)
    ahead: deque[tuple[Callable[[], Any], Any]] = deque()  # (builds the batch, event)
    held: deque[tuple[Any, Any]] = deque()  # (event, batch on the host)
    failure: Exception | None = None
    ended = False

    def issue() -> None:
        nonlocal ended, failure
        while held and (backend.is_done(held[0][0]) or len(held) > depth + 1):
            backend.synchronize(held.popleft()[0])
        if ended:
            return
        try:
            batch = next(source)
            build, plan = backend.allocate(batch)
        except StopIteration:
            ended = True
            return
        except Exception as error:  # not lost: raised at its place, after the batches before it
            ended, failure = True, error
            return
        backend.wait(backend.side, backend.record(backend.consumer()))
        try:
            backend.copy(plan, backend.side)
        except Exception as error:  # not lost: as above
            ended, failure = True, error
        finally:
            # Some copies may be in flight after a failure too. Until the wait at the end, the
            # traceback keeps this frame alive, and with it what they write to.
            event = backend.record(backend.side)
            held.append((event, batch))
        if failure is None:
            ahead.append((build, event))

    try:
        for _ in range(depth):
            issue()
        while True:
            issue()
            if not ahead:
                break
            backend.wait(backend.consumer(), ahead[0][1])
            yield ahead.popleft()[0]()
        if failure is not None:
            raise failure
    finally:
        failure = None  # else the exception and its own traceback keep each other alive
        for event, _ in held:
            backend.synchronize(event)


class TorchBackend:
    """Streams and events of a real accelerator, through torch's module for its type."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self.side = self._module.Stream(device=device)

    def consumer(self) -> Any:
        try:
            return self._module.current_stream(self.device)
        except (AssertionError, RuntimeError) as error:
            found = probe(self.device.type)
            if found.reason is None:
                raise
            # The device was there when the iteration began: it was a simulated one.
            raise DeviceUnavailableError(
                f"{str(self.device)!r} is gone ({error}): the simulation that it belongs to ended "
                "while batches were on their way to it. Finish or close the iteration inside the "
                "`with simulate(...)` block",
                requested=str(self.device),
                reason=found.reason,
            ) from error

    def allocate(self, batch: Any) -> tuple[Callable[[], Any], list[tuple[Tensor, Tensor]]]:
        pairs: list[tuple[Tensor, Tensor]] = []

        def place(tensor: Tensor) -> Tensor:
            source = _pinned(tensor)
            if source is None:  # on the consumer's stream, which waits for it by itself
                return to_device(tensor, self.device)
            target = torch.empty_like(source, device=self.device)
            pairs.append((target, source))
            return target

        is_packed = type(batch) is Packed
        data = batch.movable if is_packed else batch
        build = mapped_in_two_steps(data, place, other=self._move, name="batch")
        return (lambda: unpack(batch.replaced(build()))) if is_packed else build, pairs

    def _move(self, value: object) -> object:
        return to_device(value, self.device)

    def copy(self, plan: list[tuple[Tensor, Tensor]], stream: Any) -> None:
        with self._module.stream(stream):
            for target, tensor in plan:
                target.copy_(tensor, non_blocking=True)

    def record(self, stream: Any) -> Any:
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def is_done(self, event: Any) -> bool:
        return bool(event.query())

    def synchronize(self, event: Any) -> None:
        event.synchronize()


def _has_streams(device: Device) -> bool:
    # MPS copies at once, and backends of third parties may have no streams.
    if not device.is_accelerator or device.type == "mps":
        return False
    return hasattr(torch.get_device_module(device.torch), "Stream")


def _pinned(tensor: Tensor) -> Tensor | None:
    """The tensor in pinned memory, or None if it cannot be copied from there."""
    if type(tensor) is not Tensor or tensor.requires_grad or not is_dense_host_memory(tensor):
        return None
    pinned = tensor if tensor.is_pinned() else pin_where_possible(tensor)
    return pinned if pinned.is_pinned() else None


def _opened(batch: Any) -> Any:
    return unpack(batch) if type(batch) is Packed else batch
