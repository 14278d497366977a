"""What is ordered behind what: current streams, and points in the work of streams.

Each stream counts what is issued on it. A point is one such count for each stream: everything up to
it comes before. An event is a point; waiting for one adds it to the past of a stream.
"""

import itertools
import threading
from typing import Any

from devicekit.testing.simulation import state

__all__ = [
    "Key",
    "Point",
    "advance",
    "current",
    "done",
    "here",
    "is_behind",
    "lock",
    "new_stream",
    "of_device",
    "set_current",
    "wait",
]

Key = tuple[int, int]
"""A stream: the index of its device and its id; id 0 is the default stream."""

Point = dict[Key, int]

POOL = 32
"""Streams per device and priority; torch hands the same ones out again after that many."""

lock = threading.RLock()


class _Local(threading.local):
    """The current stream of each device, for each thread."""

    def __init__(self) -> None:
        self.streams: dict[int, int] = {}


_local = _Local()
_pools: dict[tuple[int, bool], Any] = {}
_issued: Point = {}
_past: dict[Key, Point] = {}

done: Point = {}
"""The point that the host has waited for: it comes before all that the host issues later."""


def new_stream(index: int, priority: int) -> Key:
    """Take the next stream of a device's pool."""
    first = 1 + (POOL if priority < 0 else 0)
    with lock:
        pool = _pools.setdefault((index, priority < 0), itertools.cycle(range(first, first + POOL)))
        return index, next(pool)


def current(index: int | None = None) -> Key:
    """Return the calling thread's current stream of a device, default the current one."""
    index = state.current.index if index is None else index
    return index, _local.streams.get(index, 0)


def set_current(key: Key) -> None:
    """Make a stream the calling thread's current one of its device."""
    _local.streams[key[0]] = key[1]


def advance(key: Key) -> int:
    """Issue something on a stream, and return its count."""
    with lock:
        _issued[key] = _issued.get(key, 0) + 1
        return _issued[key]


def here(key: Key) -> Point:
    """Return the point that whatever is issued on the stream next comes behind."""
    return {**_past.get(key, {}), key: _issued.get(key, 0)}


def of_device(index: int) -> Point:
    """Return the point behind all work of a device."""
    point: Point = {}
    for key in [key for key in _issued if key[0] == index]:
        merge(point, here(key))
    return point


def wait(key: Key, point: Point) -> None:
    """Order all later work of a stream behind a point."""
    with lock:
        merge(_past.setdefault(key, {}), {k: tick for k, tick in point.items() if k != key})


def merge(into: Point, point: Point) -> None:
    """Move a point forward to another one, where that is further."""
    for key, tick in point.items():
        if tick > into.get(key, 0):
            into[key] = tick


def is_behind(key: Key, what: tuple[Key, int]) -> bool:
    """Whether the next work of a stream is ordered behind something that was issued on another."""
    other, tick = what
    if other == key or tick <= done.get(other, 0):
        return True
    return tick <= _past.get(key, {}).get(other, 0)
