"""What runs in the worker processes of a loader."""

import functools
import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue
from queue import Empty
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, default_collate

from devicekit import compat
from devicekit.diagnosis.messages import is_suspect
from devicekit.packing import LARGE, Packed, Parts, pays, put_together, take_apart
from devicekit.pin import pin_where_possible
from devicekit.tree import find_tensors

__all__ = [
    "Collate",
    "Found",
    "Parcel",
    "Undelivered",
    "found_in_samples",
    "held_on_accelerator",
    "reading_failure",
    "with_safe_queues",
]

# How much of a dataset is looked at before workers start: so many objects, so many of one
# container. An index of a million files is not walked.
_GLANCE, _WIDTH = 500, 32


@dataclass(frozen=True)
class Found:
    """A tensor on an accelerator in a place where it must not be.

    Attributes:
        path: Where: the rest of a Python expression, such as "['image']".
        device: On which device.
        position: Which sample of the batch; None if `collate_fn` made it, or if not known.
    """

    path: str
    device: str
    position: int | None = None


class Parcel:
    """A batch to be pinned; from a worker, by torch's pinning thread, which asks it to pin itself.

    torch's own walk leaves dataclasses and other containers unpinned, and fails on tensors that
    cannot be pinned.
    """

    __slots__ = ("batch",)

    def __init__(self, batch: object) -> None:
        self.batch = batch

    def pin_memory(self) -> "Parcel":
        """Return it with the batch pinned."""
        return Parcel(pin_where_possible(self.batch))

    def __reduce__(self) -> tuple[type["Parcel"], tuple[object]]:
        return Parcel, (self.batch,)


@dataclass(frozen=True)
class Undelivered:
    """Stands for a batch that could not be sent to the main process: the reason."""

    error: Exception


class Collate:
    """Runs in the place of a loader's `collate_fn`: looks for accelerator tensors, packs.

    Args:
        collate_fn: The loader's.
        where: "worker" or "main".
        pack: As the loader's argument.
        batched: Whether it gets a list of samples; without automatic batching it gets one sample.
        pin: Whether to give back a `Parcel`, to be pinned by who receives it.
        look: In the main process, whether to note where the first accelerator tensor is.

    Attributes:
        seen: That tensor.
        apart: Two tensors of one batch, at the same place in their samples, on different devices,
            if collating failed for that.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        where: str,
        *,
        pack: bool | str,
        batched: bool = True,
        pin: bool = False,
        look: bool = False,
    ) -> None:
        self.collate_fn = collate_fn
        self.where = where
        self.pack = pack
        self.batched = batched
        self.pin = pin
        self.look = look
        self.seen: Found | None = None
        self.apart: tuple[Found, Found] | None = None
        if where == "worker" and pack and collate_fn is default_collate:
            self.collate_fn = functools.partial(compat.collate_for_packing, limit=LARGE)

    def __call__(self, samples: Any) -> Any:
        """Return the batch, packed or not; in a worker, perhaps a `Found` instead."""
        if self.where == "main":
            return self._in_main_process(samples)
        each = samples if self.batched else [samples]
        try:
            batch = self.collate_fn(samples)
        except Exception:
            # torch's own collate has many words for tensors on several devices.
            found = found_in_samples(each)
            if found is None:
                raise
            return found
        parts = take_apart(batch)
        if any(map(on_accelerator, parts.others)):
            return found_in_samples(each) or _found_in(batch, "batch")
        return self._parcel(batch, parts)

    def _in_main_process(self, samples: Any) -> Any:
        each = samples if self.batched else [samples]
        if self.look and self.seen is None:
            self.look, self.seen = False, found_in_samples(each)
        try:
            batch = self.collate_fn(samples)
        except RuntimeError as error:
            if is_suspect(str(error)):
                self.apart = _apart(each)
            raise
        return self._parcel(batch, take_apart(batch) if self.pack else None)

    def _parcel(self, batch: object, parts: Parts | None) -> object:
        """The batch as it travels."""
        if parts is not None and type(batch) is not Packed and self._is_worth_packing(parts.small):
            batch = put_together(parts)
        return Parcel(batch) if self.pin else batch

    def _is_worth_packing(self, small: list[Tensor]) -> bool:
        if self.pack != "auto":
            return bool(self.pack)
        nbytes = sum(tensor.nbytes for tensor in small)
        return pays(len(small), nbytes, from_worker=self.where == "worker")


def on_accelerator(tensor: Tensor) -> bool:
    """Whether `tensor` has memory that another process cannot simply use."""
    return not tensor.is_cpu and not tensor.is_meta


def _found_in(data: object, name: str, position: int | None = None) -> Found | None:
    for path, tensor in find_tensors(data, name=name):
        if on_accelerator(tensor):
            return Found(path, str(tensor.device), position)
    return None


def found_in_samples(samples: Iterable[object]) -> Found | None:
    """The first accelerator tensor in the samples of a batch."""
    found = (_found_in(sample, "", position) for position, sample in enumerate(samples))
    return next((each for each in found if each is not None), None)


def _apart(samples: Iterable[object]) -> tuple[Found, Found] | None:
    """The first two tensors at the same place in their samples, but on different devices."""
    first: dict[str, Found] = {}
    for position, sample in enumerate(samples):
        for path, tensor in find_tensors(sample, name=""):
            found = Found(path, str(tensor.device), position)
            before = first.setdefault(path, found)
            if before.device != found.device:
                return before, found
    return None


def held_on_accelerator(dataset: object) -> Found | None:
    """The first accelerator tensor among the attributes of `dataset`, as far as a glance shows.

    No sample is loaded for it: that would move random state on, count the sample twice in datasets
    that count, and open files before the workers are forked.
    """
    nearest_first = deque([("dataset", dataset)])
    for _ in range(_GLANCE):
        if not nearest_first:
            break
        path, value = nearest_first.popleft()
        if not isinstance(value, Tensor):
            nearest_first.extend(itertools.islice(_parts(path, value), _WIDTH))
        elif on_accelerator(value):
            return Found(path, str(value.device))
    return None


def _parts(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        return ((f"{path}[{key!r}]", part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return ((f"{path}[{index}]", part) for index, part in enumerate(value))
    if isinstance(value, Dataset) or path == "dataset":
        attributes = getattr(value, "__dict__", {})
        return ((f"{path}.{name}", part) for name, part in attributes.items())
    return iter(())


class _SafeQueue(Queue):  # type: ignore[type-arg]
    """A queue from which the main process learns of what could not be sent, in the place of it.

    The standard queue pickles in a thread of its own, prints an error and forgets the object;
    a loader that waits for it then waits for ever.

    Attributes:
        results: The queue to the main process; None if it is this one.
        failure: What was raised when something could not be read.
    """

    results: "_SafeQueue | None" = None
    failure: Exception | None = None

    def _on_queue_feeder_error(self, error: Exception, item: Any) -> None:
        try:
            pickle.dumps(error)
        except Exception:  # whatever its __reduce__ raises: send its text instead
            error = RuntimeError(f"{type(error).__name__}: {error}")
        if self.results is not None:
            error.add_note("while sending indices to a worker process")
        (self.results or self).put((item[0], Undelivered(error)))

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(block, timeout)
        except Empty:
            raise
        except Exception as error:  # raised again at once: a pinning thread dies of it
            self.failure = error
            raise


def with_safe_queues(context: BaseContext) -> BaseContext:
    """`context` as it is, except that what cannot be sent arrives as `Undelivered`."""
    context = context.get_context()
    if type(context).__module__ != "multiprocessing.context":
        return context  # somebody's own kind of processes

    class Context(type(context)):  # type: ignore[misc]
        results: _SafeQueue | None = None  # the first that torch's iterator makes

        def Queue(self, maxsize: int = 0) -> Any:
            queue = _SafeQueue(maxsize, ctx=self.get_context())
            queue.results = self.results
            self.results = self.results or queue
            return queue

    return Context()


def reading_failure(context: BaseContext | None) -> Exception | None:
    """What was raised when a batch from a worker could not be read, if `context` is one of ours."""
    return getattr(getattr(context, "results", None), "failure", None)
