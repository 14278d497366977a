"""Streams, events and one copy engine in virtual time, and a detector of races on memory.

`Machine` models what the schedule of `devicekit.prefetch` runs on. Two things are exact:

Time. The host, each stream and the copy engine have a clock in microseconds. Queueing costs the
host a little; an operation starts when its stream, what it waits for and its engine are free.

Order. Each operation knows, as a vector clock, which earlier operations of each stream (and of the
host) it must come after, by the order of its stream, events and waits of the host. Two operations
on one block of memory, one of them a write, that are not ordered so are a race, whatever their
times happen to be. So a schedule without races is safe on any machine, fast or slow.

Memory is freed when Python drops the last reference: to the pool of the stream that it was
allocated on, from where it is used again at once, as torch's caching allocators do. Host memory is
used again at once too, the hardest case: torch's own allocator of pinned memory would wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

ISSUE = 5.0  # us of the host per operation queued
MARK = 1.0  # us of the host per event recorded or waited for

Clock = dict[str, int]


@dataclass
class Stream:
    name: str
    free_at: float = 0.0
    clock: Clock = field(default_factory=dict)


@dataclass(frozen=True)
class Event:
    time: float
    clock: Clock


@dataclass(frozen=True)
class Operation:
    what: str
    writes: bool
    stream: str
    index: int
    clock: Clock

    def is_after(self, other: Operation) -> bool:
        return self.clock.get(other.stream, 0) >= other.index


class Block:
    """A piece of memory with the operations on it that later ones may collide with."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.content: object = None


class Memory:
    """A handle on a block; the block returns to its pool with the last reference."""

    def __init__(self, pool: list[Block], made: list[Block]) -> None:
        if not pool:
            pool.append(Block())
            made.append(pool[-1])
        self._pool = pool
        self.block = pool.pop()

    def __del__(self) -> None:
        self._pool.append(self.block)


class HostBatch(Memory):
    def __init__(self, machine: Machine, number: int) -> None:
        super().__init__(machine.host_pool, machine.host_blocks)
        self.number = number
        machine.host_operation(self.block, f"load {number}", number)


class DeviceBatch(Memory):
    def __init__(self, machine: Machine, stream: Stream) -> None:
        super().__init__(machine.pools.setdefault(stream.name, []), machine.blocks)


class Machine:
    """One host and one device; also the backend that `run_schedule` takes.

    Attributes:
        races: What collided with what, as text.
        blocks: Every block of device memory that was ever needed.
        host_blocks: The same of the host.
    """

    def __init__(self, copy_time: float = 1000.0) -> None:
        self.copy_time = copy_time
        self.now = 0.0
        self.host_clock: Clock = {}
        self.engine_free_at = 0.0
        self.main = Stream("main")
        self.side = Stream("side")
        self.pools: dict[str, list[Block]] = {}
        self.blocks: list[Block] = []
        self.host_pool: list[Block] = []
        self.host_blocks: list[Block] = []
        self.races: list[str] = []
        self.fail_allocate_at: int | None = None
        self.fail_copy_at: int | None = None

    # What a program does.

    def kernel(
        self, stream: Stream, block: Block, what: str, duration: float, *, writes: bool = False
    ) -> None:
        self.now += ISSUE
        start = max(self.now, stream.free_at)
        stream.free_at = start + duration
        self._touch(stream, block, what, writes)

    def host_operation(self, block: Block, what: str, content: object) -> None:
        host = Stream("host", clock=self.host_clock)
        self._touch(host, block, what, writes=True)
        block.content = content

    def _touch(self, stream: Stream, block: Block, what: str, writes: bool) -> None:
        _merge(stream.clock, self.host_clock)
        index = stream.clock[stream.name] = stream.clock.get(stream.name, 0) + 1
        new = Operation(what, writes, stream.name, index, dict(stream.clock))
        for old in block.operations:
            if (writes or old.writes) and not new.is_after(old):
                self.races.append(f"{new.what} collides with {old.what}")
        if writes:
            block.operations = [new]
        else:
            block.operations.append(new)

    # The backend.

    def consumer(self) -> Stream:
        return self.main

    def allocate(
        self, batch: HostBatch
    ) -> tuple[Callable[[], DeviceBatch], tuple[DeviceBatch, HostBatch]]:
        if batch.number == self.fail_allocate_at:
            raise MemoryError(f"no room for {batch.number}")
        target = DeviceBatch(self, self.main)
        return lambda: target, (target, batch)

    def copy(self, plan: tuple[DeviceBatch, HostBatch], stream: Stream) -> None:
        target, source = plan
        self.now += ISSUE
        start = max(self.now, stream.free_at, self.engine_free_at)
        stream.free_at = self.engine_free_at = start + self.copy_time
        what = f"copy {source.number}"
        self._touch(stream, source.block, what, writes=False)
        self._touch(stream, target.block, what, writes=True)
        target.block.content = source.number
        if source.number == self.fail_copy_at:  # the second of two leaves, say
            raise RuntimeError(f"copy of {source.number} failed")

    def record(self, stream: Stream) -> Event:
        self.now += MARK
        return Event(stream.free_at, dict(stream.clock))

    def wait(self, stream: Stream, event: Event) -> None:
        self.now += MARK
        stream.free_at = max(stream.free_at, event.time)
        _merge(stream.clock, event.clock)

    def is_done(self, event: Event) -> bool:
        if event.time > self.now:
            return False
        _merge(self.host_clock, event.clock)
        return True

    def synchronize(self, event: Event) -> None:
        self.now = max(self.now, event.time)
        _merge(self.host_clock, event.clock)


def _merge(clock: Clock, other: Clock) -> None:
    for name, index in other.items():
        clock[name] = max(clock.get(name, 0), index)


class Loader:
    """Worker processes that have a batch ready every `period` us, at most `ahead` in advance."""

    take_time = 20.0  # us of the host

    def __init__(
        self, machine: Machine, length: int, period: float = 0.0, *, fail_at: int | None = None
    ) -> None:
        self.machine, self.length, self.period, self.fail_at = machine, length, period, fail_at

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[HostBatch]:
        ready, ahead = self.machine.now, 4
        taken: list[float] = [ready] * ahead  # a heap of when the last `ahead` were taken
        for number in range(self.length):
            ready = max(ready, heapq.heappop(taken)) + self.period
            self.machine.now = max(self.machine.now, ready) + self.take_time
            heapq.heappush(taken, self.machine.now)
            if number == self.fail_at:
                raise ValueError(f"sample {number} is broken")
            yield HostBatch(self.machine, number)


def train(
    machine: Machine,
    batches: Iterable[DeviceBatch],
    *,
    compute: float = 1000.0,
    host: float = 100.0,
    keep: int = 0,
    drop_early: bool = False,
    item: bool = False,
    stop_at: int | None = None,
    fail_at: int | None = None,
    seen: list[object] | None = None,
) -> list[object]:
    """Consume the batches as a training loop does; return what the steps read, also in `seen`."""
    seen = [] if seen is None else seen
    kept: list[DeviceBatch] = []
    for step, batch in enumerate(batches):
        machine.now += host
        content = batch.block.content
        seen.append(content)
        if drop_early:  # as by `x = x.float() / 255`
            machine.kernel(machine.main, batch.block, f"cast {content}", compute / 10)
            del batch
            scratch = DeviceBatch(machine, machine.main)
            machine.kernel(
                machine.main, scratch.block, f"step {content}", compute * 0.9, writes=True
            )
            del scratch
        else:
            machine.kernel(machine.main, batch.block, f"step {content}", compute)
            kept.append(batch)
            del kept[: len(kept) - keep]
        if item:
            machine.synchronize(machine.record(machine.main))
        if fail_at == step:
            raise ArithmeticError("the loss is nan")
        if stop_at == step:
            break
    for old in kept:  # whatever came in between, a batch that is kept is as it was
        machine.kernel(machine.main, old.block, f"look again at {old.block.content}", 1.0)
    return seen


def go_on(machine: Machine) -> None:
    """Work on new device and host memory after the loop, as a program does."""
    held = []
    for number in range(8):
        held.append(DeviceBatch(machine, machine.main))
        machine.kernel(machine.main, held[-1].block, f"later {number}", 400.0, writes=True)
    held_host = [HostBatch(machine, 1000 + number) for number in range(8)]
    del held, held_host
