"""A DataLoader whose batches come out on the device."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler

from devicekit import compat
from devicekit.device import Device
from devicekit.loader.distributed import EpochSampler, world_size
from devicekit.loader.epoch import Epoch, Indices, Running, cpu_by_default
from devicekit.loader.faults import free_shared_memory
from devicekit.loader.report import worker_device_error
from devicekit.loader.starting import context_for
from devicekit.loader.workers import Collate, Found, held_on_accelerator, with_safe_queues
from devicekit.move import to_device
from devicekit.packing import Packed, unpack
from devicekit.prefetch import TorchBackend, run_schedule

__all__ = ["Batches", "DataLoader"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` that yields its batches on the device.

    It takes every argument of torch's, gives the same batches in the same order for the same seed,
    and raises the same errors at the same place. Beyond that, the batches are collated, packed and
    pinned in worker processes and threads, and copied to the device ahead of time.

    Args:
        dataset: As in torch, like all arguments that are not described here.
        batch_size: As in torch.
        shuffle: As in torch.
        sampler: As in torch. Without `sampler` and `batch_sampler`, under `torch.distributed` each
            process gets its part of a map-style dataset, in another order each epoch.
        batch_sampler: As in torch.
        num_workers: As in torch.
        collate_fn: As in torch.
        pin_memory: "auto" pins where the device gains by it; without an accelerator, True does
            nothing, and says nothing.
        drop_last: As in torch.
        timeout: As in torch.
        worker_init_fn: As in torch.
        multiprocessing_context: As in torch. None is the platform's own, or, where that would fork
            a process that has initialised an accelerator, a fork server.
        generator: As in torch. One on an accelerator is replaced by a CPU one with its seed.
        prefetch_factor: As in torch.
        persistent_workers: As in torch.
        pin_memory_device: Deprecated in torch, without effect here: `device` it is.
        in_order: As in torch.
        device: Where the batches go: whatever `Device` takes.
        pack: Whether a batch travels as one buffer for its small tensors (`devicekit.pack`);
            "auto" where that is quicker (`devicekit.packing.pays`).
        prefetch: How many batches are copied ahead of the current one; 0 for none.
        on_device_data: What to do if the dataset gives accelerator tensors in worker processes,
            where they cannot be used: "adapt" loads in the main process, with one warning;
            "error" raises `WorkerDeviceError`.

    Attributes:
        device: The `Device` that the batches come out on.
        pin_memory: Whether batches are pinned.

    Raises:
        ValueError: `pack`, `prefetch` or `on_device_data` is none of the above, or what torch
            raises for its own arguments.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from devicekit import DataLoader
        >>> loader = DataLoader(TensorDataset(torch.arange(5.0)), batch_size=2, device="cpu")
        >>> for (x,) in loader:
        ...     print(x, x.device)
        tensor([0., 1.]) cpu
        tensor([2., 3.]) cpu
        tensor([4.]) cpu
    """

    device: Device
    pack: bool | Literal["auto"]
    prefetch: int
    on_device_data: str

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | Literal["auto"] = "auto",
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: str | torch.device | int | None = "auto",
        pack: bool | Literal["auto"] = "auto",
        prefetch: int = 1,
        on_device_data: Literal["adapt", "error"] = "adapt",
    ) -> None:
        _check(pin_memory, pack, prefetch, on_device_data)
        self.device = Device(device)
        self.pack = pack
        self.prefetch = prefetch
        self.on_device_data = on_device_data
        self._adapted = False
        self._running: Running | None = None
        self._latest: weakref.ref[Batches] | None = None
        self._backend: TorchBackend | None = None
        self._part: EpochSampler | None = None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            bool(pin_memory) and _can_pin_for(self.device),
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            _on_cpu(generator),
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        iterable = isinstance(dataset, IterableDataset)
        self._may_divide = sampler is None and batch_sampler is None and not iterable
        self._shuffle = bool(shuffle)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, in this process or another, has no workers, iterators or streams of its own yet.
        nothing = (compat.KEPT_ITERATOR, "_running", "_latest", "_backend")
        return {**vars(self), **dict.fromkeys(nothing)}

    def __len__(self) -> int:
        part = self._part_of_indices()
        return super().__len__() if part is None else len(part)

    def __iter__(self) -> Batches:  # type: ignore[override]
        if self.persistent_workers and self._latest is not None:
            latest = self._latest()
            if latest is not None:
                latest.supersede()  # it has the same workers, which begin again
        held = self._held_on_accelerator()
        with cpu_by_default():
            running = self._start(look=held is not None)
        batches = Batches(self._on_device(Epoch(self, running, held)), running.indices)
        self._latest = weakref.ref(batches)
        return batches

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next epoch, to resume a distributed run; each adds one.

        Without a process group, or with a sampler of the caller's, there is nothing to choose.

        Args:
            epoch: The number of the epoch that begins next, counted from 0.
        """
        if self._part_of_indices() is not None and self._part is not None:
            self._part.set_epoch(epoch)

    def _part_of_indices(self) -> BatchSampler | EpochSampler | None:
        """The sampler of this process's part of the dataset; None where nothing is divided.

        Not put in the place of `sampler`: accelerate and Lightning look at that, and divide what
        it gives among the processes themselves.
        """
        if not self._may_divide or world_size() == 1:
            return None
        if self._part is None:
            self._part = EpochSampler(self.dataset, shuffle=self._shuffle, drop_last=self.drop_last)
        if self.batch_size is None:
            return self._part
        return BatchSampler(self._part, self.batch_size, self.drop_last)

    def _held_on_accelerator(self) -> Found | None:
        if self.num_workers == 0 or self._adapted or self._running is not None:
            return None
        held = held_on_accelerator(self.dataset)
        if held is None:
            return None
        if self.on_device_data == "error":
            raise worker_device_error(self, held, self._indices())
        self._stay_in_main_process()
        return held

    def _start(self, rest: Iterable[Any] | None = None, look: bool = False) -> Running:
        """Begin an epoch: over all indices, or over the `rest` of one that cannot go on."""
        kept = self._running
        if kept is not None and compat.restarted(self, kept.batches):
            return kept
        workers = self.num_workers > 0 and not self._adapted
        pack = self.pack
        if pack == "auto" and not workers and not self.device.is_accelerator:
            pack = False
        collate = Collate(
            self.collate_fn,
            "worker" if workers else "main",
            pack=pack,
            batched=self.batch_sampler is not None,
            pin=self.pin_memory and not self._adapted,
            look=look or rest is not None,
        )
        changes: dict[str, Any] = {
            "collate_fn": collate,
            "pin_memory": self.pin_memory and workers,
            "pin_memory_device": "",
        }
        indices = self._indices() if rest is None else Indices(rest)
        if indices is not None:
            changes["sampler" if self.batch_sampler is None else "batch_sampler"] = indices
        context = None
        if workers:
            parts: dict[str, object] = {
                "dataset": self.dataset,
                "collate_fn": self.collate_fn,
                "worker_init_fn": self.worker_init_fn,
            }
            context = with_safe_queues(context_for(self.multiprocessing_context, parts))
            changes["multiprocessing_context"] = context
        elif self._adapted:
            changes |= _WITHOUT_WORKERS
        free = free_shared_memory() if workers else None
        batches = compat.started_loader(self, changes)
        running = Running(batches, collate, indices, free, context)
        if workers and self.persistent_workers:
            self._running = running
        return running

    def _indices(self) -> Indices | None:
        if isinstance(self.dataset, IterableDataset):
            return None
        part = self._part_of_indices()
        if part is not None:
            return Indices(part)
        return Indices(self.sampler if self.batch_sampler is None else self.batch_sampler)

    def _stay_in_main_process(self) -> None:
        self._adapted = True
        self._forget_workers()

    def _forget_workers(self) -> None:
        self._running = None
        setattr(self, compat.KEPT_ITERATOR, None)

    def _on_device(self, epoch: Iterable[Any]) -> Iterator[Any]:
        if not self.prefetch or not self.pin_memory:
            return _moved(epoch, self.device)
        if self._backend is None:  # once: it has a stream, which has a pool of memory
            self._backend = TorchBackend(self.device.torch)
        return run_schedule(epoch, self._backend, self.prefetch)


class Batches(Iterator[Any]):
    """Iterates once over a loader."""

    def __init__(self, batches: Iterator[Any], indices: Indices | None) -> None:
        self._batches = batches
        self._indices = indices
        self._superseded = False

    def __next__(self) -> Any:
        if self._superseded:
            raise RuntimeError(
                "this iterator was ended by a later one over the same DataLoader: persistent "
                "workers serve one at a time. Fix: finish one iteration before the next, use two "
                "DataLoaders, or pass `persistent_workers=False`"
            )
        return next(self._batches)

    def __len__(self) -> int:
        if self._indices is None:
            raise TypeError("an iterator over an IterableDataset has no len()")
        return len(self._indices)

    def close(self) -> None:
        """End the iteration: stops the workers, unless they are persistent."""
        self._batches.close()  # type: ignore[attr-defined]

    def supersede(self) -> None:
        """End the iteration because another begins; to go on with it would be an error."""
        self._superseded = self._batches.gi_frame is not None  # type: ignore[attr-defined]
        self.close()


_WITHOUT_WORKERS = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}


def _moved(batches: Iterable[Any], device: Device) -> Iterator[Any]:
    for batch in batches:
        if type(batch) is not Packed:
            yield to_device(batch, device)
        elif _has_streams(device):
            yield unpack(batch.to(device))
        else:  # without a copy, or, on MPS, one that may have to cast
            yield to_device(unpack(batch), device)


def _has_streams(device: Device) -> bool:
    return device.is_accelerator and device.type != "mps"


def _can_pin_for(device: Device) -> bool:
    accelerator = compat.current_accelerator()
    return _has_streams(device) and accelerator is not None and accelerator.type == device.type


def _on_cpu(generator: torch.Generator | None) -> torch.Generator | None:
    """Indices are drawn on the CPU: a generator of an accelerator only lends its seed."""
    if generator is None or generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(generator.initial_seed())


def _check(pin_memory: object, pack: object, prefetch: object, on_device_data: object) -> None:
    for name, value in (("pin_memory", pin_memory), ("pack", pack)):
        if not isinstance(value, bool) and value != "auto":
            raise ValueError(f'`{name}` must be True, False or "auto", not {value!r}')
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"`prefetch` must be a number of batches, 0 or more, not {prefetch!r}")
    if on_device_data not in ("adapt", "error"):
        raise ValueError(f'`on_device_data` must be "adapt" or "error", not {on_device_data!r}')
