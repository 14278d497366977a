"""One epoch of a loader: torch's own iterator, its faults explained and, where possible, mended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, Protocol, cast

import torch

from devicekit import compat
from devicekit.errors import warn_once
from devicekit.loader.faults import (
    device_fault,
    explained,
    is_dead_pinning_thread,
    shortage_ahead,
)
from devicekit.loader.report import mixed_batch_error, warn_of_adapting, worker_device_error
from devicekit.loader.workers import (
    Collate,
    Found,
    Parcel,
    Undelivered,
    reading_failure,
)

__all__ = ["Epoch", "Indices", "Running", "cpu_by_default"]


class Indices:
    """A sampler that knows which of its indices have not come back as a batch."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self.sampler = sampler
        self.waiting: deque[Any] = deque()
        self._rest: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        self.waiting.clear()
        self._rest = iter(self.sampler)
        for index in self._rest:
            self.waiting.append(index)
            yield index

    def __len__(self) -> int:
        return len(cast(Sized, self.sampler))

    def pop(self) -> None:
        """A batch has come back."""
        if self.waiting:
            self.waiting.popleft()

    def remaining(self) -> Iterator[Any]:
        """Those that have not come back, and those that were not handed out yet."""
        return chain(tuple(self.waiting), self._rest)


class Running(NamedTuple):
    """torch's iterator over a loader, and what was put in place of the loader's own parts."""

    batches: Iterator[Any]
    collate: Collate
    indices: Indices | None  # None for an IterableDataset
    free_shared_memory: int | None = None  # bytes before the workers started, if known
    context: BaseContext | None = None  # that of the workers

    @property
    def has_workers(self) -> bool:
        """Whether the batches come from worker processes."""
        return self.collate.where == "worker"


class Startable(Protocol):
    """What an epoch needs from its loader."""

    dataset: Any
    num_workers: int
    prefetch_factor: int | None
    in_order: bool
    on_device_data: str
    persistent_workers: bool

    def _start(self, rest: Iterable[Any] | None = None) -> Running: ...
    def _stay_in_main_process(self) -> None: ...
    def _forget_workers(self) -> None: ...


def cpu_by_default() -> AbstractContextManager[object]:
    """Make factory functions without `device=` work on the CPU, whatever the default device is.

    Samplers, seeds and collating use the CPU's generator; under another default device they fail.
    """
    if torch.empty(0).is_cpu:
        return nullcontext()
    return torch.device("cpu")


class Epoch:
    """The batches of one epoch, on the CPU (or where the dataset has put them).

    Args:
        loader: Whose epoch it is.
        running: torch's iterator over it.
        held: An accelerator tensor in the dataset, the reason why there are no workers.
    """

    def __init__(self, loader: Startable, running: Running, held: Found | None = None) -> None:
        self.loader = loader
        self.running = running
        self.reason: Found | Exception | None = held
        self.delivered = 0

    def __iter__(self) -> Generator[Any, None, None]:
        healthy = False
        try:
            while True:
                try:
                    batch = self._next()
                except StopIteration:
                    break
                yield batch
            healthy = True
        except (GeneratorExit, Exception):
            healthy = compat.loader_is_healthy(self.running.batches)
            raise
        finally:
            self._close(healthy)

    def _close(self, healthy: bool) -> None:
        """Stop the workers, unless they are to be kept and can be."""
        if healthy and self.loader.persistent_workers:
            return
        # Not left to reference counting: the frames of an exception would keep the workers alive.
        compat.stop_loader(self.running.batches)
        self.loader._forget_workers()

    def _next(self) -> Any:
        try:
            with cpu_by_default():
                batch = next(self.running.batches)
            if type(batch) is Parcel and not self.running.has_workers:
                batch = batch.pin_memory()
        except StopIteration:
            raise
        except Exception as error:
            return self._mend(error)
        if type(batch) is Undelivered:
            return self._mend(batch.error)
        if type(batch) is Found:
            return self._adapt(batch)
        if self.reason is not None:
            reason = self.running.collate.seen or self.reason
            self.reason = None
            warn_of_adapting(self.loader, reason, self.running.indices)
        if self.running.indices is not None:
            self.running.indices.pop()
        batch = batch.batch if type(batch) is Parcel else batch
        if not self.delivered and self.running.has_workers:
            self._estimate(batch)
        self.delivered += 1
        return batch

    def _estimate(self, batch: object) -> None:
        workers, factor = self.loader.num_workers, self.loader.prefetch_factor or 2
        text = shortage_ahead(batch, workers, factor, self.running.free_shared_memory)
        if text is not None:  # not by its text: another epoch begins with a batch of another size
            warn_once(text, key=f"shared memory for {workers} x {factor} batches")

    def _mend(self, error: Exception) -> Any:
        if self.running.has_workers and device_fault(error):
            return self._adapt(error)
        apart = self.running.collate.apart
        if apart is not None:
            raise mixed_batch_error(self.loader, apart, self.running.indices) from error
        if is_dead_pinning_thread(error):
            error = reading_failure(self.running.context) or error
        better = explained(error) if self.running.has_workers else None
        if better is None:
            raise error
        raise better from error

    def _adapt(self, reason: Found | Exception) -> Any:
        """Go on in the main process, from the batch that the workers could not give."""
        indices = self.running.indices
        resumable = not self.delivered or (indices is not None and self.loader.in_order)
        if self.loader.on_device_data == "error" or not resumable:
            cause = reason if isinstance(reason, Exception) else None
            raise worker_device_error(self.loader, reason, indices) from cause
        compat.stop_loader(self.running.batches)
        self.loader._stay_in_main_process()
        self.running = self.loader._start(None if indices is None else indices.remaining())
        self.reason = reason
        return self._next()
