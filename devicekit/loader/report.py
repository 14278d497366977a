"""What a loader says about accelerator tensors in its worker processes."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from devicekit.errors import DeviceMismatchError, WorkerDeviceError
from devicekit.loader.faults import device_fault
from devicekit.loader.workers import Found, found_in_samples

if TYPE_CHECKING:
    from devicekit.loader.epoch import Indices, Startable

__all__ = ["mixed_batch_error", "warn_of_adapting", "worker_device_error"]

_CUDA_SAYS = (
    "'Cannot re-initialize CUDA in forked subprocess', 'error (801)' or "
    "'Producer process has been terminated'"
)


def worker_device_error(
    loader: Startable, reason: Found | Exception, indices: Indices | None
) -> WorkerDeviceError:
    """The error for accelerator tensors in a worker.

    Args:
        loader: Whose workers.
        reason: What was found, or the error that it caused.
        indices: Those that have not come back as a batch.
    """
    if isinstance(reason, Exception) or reason.position is None:
        words = repr(device_fault(reason)) if isinstance(reason, Exception) else _CUDA_SAYS
        reason = _probe(loader, indices) or reason
    else:
        words = _CUDA_SAYS
    return WorkerDeviceError(
        f"{_description(loader, reason, indices)}: tensors on an accelerator can neither be used "
        f"in the worker processes of a DataLoader (`num_workers` is {loader.num_workers}) nor be "
        f"sent from them; CUDA says {words}\n"
        "  fix: keep the tensors of the dataset on the CPU, the loader moves the batches to the "
        'device; or load in the main process (`num_workers=0`, or `on_device_data="adapt"`)'
    )


def mixed_batch_error(
    loader: Startable, apart: tuple[Found, Found], indices: Indices | None
) -> DeviceMismatchError:
    """The error for samples on several devices that were to become one batch."""
    one, other = (_description(loader, found, indices) for found in apart)
    return DeviceMismatchError(
        f"expected all tensors of a batch to be on the same device, but {one} and {other}\n"
        "  fix: keep the tensors of the dataset on the CPU, the loader moves the batches to the "
        "device"
    )


def warn_of_adapting(loader: Startable, reason: Found | Exception, indices: Indices | None) -> None:
    """Say why the workers are not used."""
    warnings.warn(
        f"{_description(loader, reason, indices)}: tensors on an accelerator can neither be used "
        f"in the worker processes of a DataLoader (`num_workers` is {loader.num_workers}) nor be "
        "sent from them, so it loads in the main process. Fix: keep the tensors of the dataset on "
        "the CPU, the loader moves the batches to the device",
        stacklevel=_levels_to_the_caller(),
    )


def _levels_to_the_caller() -> int:
    """How far up the first frame outside the library is, for `warnings.warn` in the caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("devicekit"):
        level, frame = level + 1, frame.f_back
    return level


def _description(loader: Startable, reason: Found | Exception, indices: Indices | None) -> str:
    dataset = type(loader.dataset).__name__
    known = indices is not None and indices.waiting and loader.in_order
    batch = _listed(indices.waiting[0]) if indices is not None and known else []
    if isinstance(reason, Exception):
        place = f"[{batch[0]!r}], or a sample beside it," if batch else ""
        return f"{dataset}{place} failed in a worker process: {device_fault(reason)}"
    if reason.position is None:
        return f"{dataset}: `{reason.path}` is on {reason.device}"
    if reason.position < len(batch):
        return f"`{dataset}[{batch[reason.position]!r}]{reason.path}` is on {reason.device}"
    where = f"`sample{reason.path}`, in sample {reason.position} of a batch,"
    return f"{dataset}: {where} is on {reason.device}"


def _listed(batch: Any) -> Any:
    return batch if isinstance(batch, list | tuple) else [batch]


def _probe(loader: Startable, indices: Indices | None) -> Found | None:
    """Load samples in this process to find the one at fault: only when an error is on its way."""
    if indices is None:
        return None
    try:
        if not indices.waiting:
            next(iter(indices))
        return found_in_samples([loader.dataset[index] for index in _listed(indices.waiting[0])])
    except Exception:  # whatever the dataset raises here: the error says what is known without it
        return None
