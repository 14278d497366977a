"""What the errors of worker processes mean, and what to do about them.

The texts are those of torch, CUDA and the operating system; the numbers beside them are measured
when the error occurs.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from devicekit.errors import DeviceError, PinMemoryError
from devicekit.pin import is_dense_host_memory
from devicekit.tree import find_tensors
from devicekit.units import format_bytes

__all__ = [
    "device_fault",
    "explained",
    "free_shared_memory",
    "is_dead_pinning_thread",
    "shortage_ahead",
]

# What a worker, or the process that receives its tensors, says when accelerator tensors are
# used in a forked process or sent between processes. Sources: pytorch#40403 (fork), #36037 and
# #13117 (801, Windows and Jetson), #149187 (producer), #151549 (XPU).
_DEVICE_FAULT = re.compile(
    r"Cannot re-initialize \w+ in forked subprocess"
    r"|\berror \(801\)"
    r"|(?:CUDA|HIP|XPU) error: (?:initialization error|operation not supported"
    r"|invalid device pointer|invalid resource handle)"
    r"|runtime error \(\d+\) ?: ?(?:initialization error|operation not supported"
    r"|invalid device pointer|invalid resource handle)"
    r"|Producer process has been terminated"
    r"|_share_\w+: only available on CPU"
    # A worker that was not forked does not know a backend that its parent has registered.
    r"|device type at start of device string: \w+"
)
_SHARED_MEMORY = re.compile(
    r"Bus error|out of shared memory|shared memory\(shm\)|No space left on device"
    r"|unable to (?:open|resize|mmap|write to|allocate) (?:shared memory|file|\d+ bytes)"
)
_DESCRIPTORS = re.compile(r"Too many open files|received 0 items of ancdata")
_PIN_THREAD = "Pin memory thread exited unexpectedly"


def device_fault(error: BaseException) -> str:
    """What CUDA says in `error` about its tensors in, or from, another process; else empty."""
    found = _DEVICE_FAULT.search(str(error)) if isinstance(error, RuntimeError) else None
    return found.group() if found else ""


def explained(error: Exception) -> DeviceError | None:
    """The error to raise from `error` when the system was too small for the workers, else None."""
    text = str(error)
    if not isinstance(error, RuntimeError | OSError):
        return None
    if isinstance(error, OSError) and text.startswith("Caught "):
        return None  # the dataset's own files: what torch says of shared memory is a RuntimeError
    if _DESCRIPTORS.search(text):
        return DeviceError(_frame(text, _FEWER_DESCRIPTORS))
    if _SHARED_MEMORY.search(text):
        return DeviceError(_frame(text, _MORE_SHARED_MEMORY))
    if is_dead_pinning_thread(error):
        return PinMemoryError(_frame(text, _PIN_THREAD_DIED))
    return None


def is_dead_pinning_thread(error: Exception) -> bool:
    """Whether it is what torch says when its pinning thread has ended."""
    return _PIN_THREAD in str(error)


def free_shared_memory() -> int | None:
    """Bytes free for shared memory; None on systems without /dev/shm."""
    with suppress(OSError, AttributeError):
        shm = os.statvfs("/dev/shm")
        return shm.f_frsize * shm.f_bavail
    return None


def shortage_ahead(
    batch: object, num_workers: int, prefetch_factor: int, free: int | None
) -> str | None:
    """What to say if the batches that workers load ahead may not find room in shared memory.

    Args:
        batch: The first: the others are taken to be as large.
        num_workers: As the loader's.
        prefetch_factor: As the loader's.
        free: Bytes that were free before the workers started, if known.
    """
    ahead = num_workers * prefetch_factor
    dense = (tensor for _, tensor in find_tensors(batch) if is_dense_host_memory(tensor))
    memory = (tensor.untyped_storage() for tensor in dense)  # sent whole, and once
    nbytes = sum({each.data_ptr(): each.nbytes() for each in memory}.values())
    if free is None or nbytes * ahead <= free:
        return None
    return (
        f"the first batch has {format_bytes(nbytes)} of tensors, and {ahead} like it are loaded "
        f"ahead (`num_workers` {num_workers} x `prefetch_factor` {prefetch_factor}), in all "
        f"{format_bytes(nbytes * ahead)}; /dev/shm had {format_bytes(free)} free before. Workers "
        f"that find no more are killed. Fix: {_MORE_SHARED_MEMORY}"
    )


_MORE_SHARED_MEMORY = (
    "give the process more shared memory (`docker run --shm-size=8g` or `--ipc=host`), or need"
    " less of it: fewer `num_workers`, a smaller `prefetch_factor` or batch"
)
_FEWER_DESCRIPTORS = (
    "raise the limit (`ulimit -n 65536`), or need fewer descriptors: `pack=True` sends one per"
    ' batch, `torch.multiprocessing.set_sharing_strategy("file_system")` keeps none open'
)
_PIN_THREAD_DIED = (
    "the thread's own error is on stderr, above; raise the limit that is exhausted below, or load"
    " with `pin_memory=False`"
)


def _frame(text: str, remedy: str) -> str:
    return f"{text}\n\n  found: {_measured()}\n  fix: {remedy}"


def _measured() -> str:
    """The limits that worker processes run into, as they are now."""
    parts = []
    with suppress(OSError, AttributeError):  # no /dev/shm, or no statvfs: not on this system
        shm = os.statvfs("/dev/shm")
        total, free = shm.f_frsize * shm.f_blocks, shm.f_frsize * shm.f_bavail
        parts.append(f"/dev/shm {format_bytes(total)}, of which {format_bytes(free)} free")
    with suppress(ImportError, OSError):  # the module `resource` exists on POSIX only
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        opened = sum(1 for _ in Path("/proc/self/fd").iterdir())
        parts.append(f"RLIMIT_NOFILE {soft} (hard {hard}), {opened} open in this process")
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        unlimited = locked == resource.RLIM_INFINITY
        parts.append(f"RLIMIT_MEMLOCK {'unlimited' if unlimited else format_bytes(locked)}")
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    parts.append(f"sharing strategy {strategy!r}")
    return "; ".join(parts)
