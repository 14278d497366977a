"""Page-locked ("pinned") host memory for everything that the walker looks into.

A copy from pinned memory to an accelerator can run beside the computation; a copy from ordinary
("pageable") memory cannot. Only dense CPU tensors can be pinned. All else is left as it is.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from devicekit import compat
from devicekit.device import Device
from devicekit.errors import DeviceUnavailableError, PinMemoryError, warn, warn_once
from devicekit.tree import find_tensors, map_tensors
from devicekit.tree.anatomy import is_a
from devicekit.units import format_bytes

try:
    import resource
except ImportError:  # Windows has no limits of this kind
    resource = None  # type: ignore[assignment]

__all__ = ["host_limits", "is_dense_host_memory", "pin_memory", "pin_where_possible"]

T = TypeVar("T")

# What the drivers say when host memory cannot be locked. Any other failure, such as a device-side
# assert that surfaces here, is not about pinning and passes untouched.
_REFUSED = re.compile(
    r"out of memory|memory allocation|allocate|not permitted|not supported|resource", re.IGNORECASE
)

_refused: list[PinMemoryError] = []


def pin_memory(data: T) -> T:
    """Return `data` with every tensor that can be pinned in page-locked host memory.

    Looks into the same containers as `to_device`. A tensor that is pinned already is returned
    itself, and so is every container in which nothing changed. What cannot be pinned (a tensor on
    an accelerator or on `meta`, sparse, nested, quantized) is left as it is, with one warning that
    names the first. Objects that are not looked into are asked for their own `.pin_memory()`.

    Without an accelerator, and on MPS, whose memory is shared with the host, there is nothing to
    pin for: `data` itself is returned.

    Args:
        data: Tensors in any structure.

    Returns:
        The same structure; the caller's object is not changed.

    Raises:
        PinMemoryError: The system refused to lock the memory; the message has the measured limits.

    Example:
        >>> import torch
        >>> from devicekit import pin_memory
        >>> batch = {"x": torch.ones(2), "id": "a"}
        >>> torch.equal(pin_memory(batch)["x"], batch["x"])
        True
    """
    accelerator = _pinning_accelerator()
    if accelerator is None:
        return data
    left: list[Tensor] = []

    def pin(tensor: Tensor) -> Tensor:
        if not is_dense_host_memory(tensor):
            left.append(tensor)
            return tensor
        return _pin_tensor(tensor)

    with _context_of(accelerator):
        pinned = map_tensors(data, pin, other=_pin_foreign)
    if left:
        _warn_left(data, left[0])
    return pinned


def pin_where_possible(data: T) -> T:
    """`pin_memory` for use unasked: when the system refuses, warn once and stop trying.

    The limits on page-locked memory belong to the process, so a refusal holds for all of it.
    """
    if _refused:
        return data
    try:
        return pin_memory(data)
    except PinMemoryError as error:
        _refused.append(error)
        warn(f"continuing without pinned memory: {error}")
        return data


def host_limits() -> dict[str, str]:
    """What this machine allows in pinned and shared memory, measured now, as text for messages."""
    found = {"locked-memory limit (RLIMIT_MEMLOCK)": "unknown", "free host memory": "unknown"}
    if resource is not None:
        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        unlimited = soft == resource.RLIM_INFINITY
        found["locked-memory limit (RLIMIT_MEMLOCK)"] = "none" if unlimited else format_bytes(soft)
    with contextlib.suppress(OSError, StopIteration):  # only Linux has the file
        with open("/proc/meminfo", encoding="ascii") as lines:
            line = next(line for line in lines if line.startswith("MemAvailable"))
        found["free host memory"] = format_bytes(int(line.split()[1]) * 1024)
    if os.path.isdir("/dev/shm"):
        found["free shared memory (/dev/shm)"] = format_bytes(shutil.disk_usage("/dev/shm").free)
    found["WSL"] = "yes" if "microsoft" in platform.uname().release.lower() else "no"
    return found


def _pinning_accelerator() -> torch.device | None:
    """The accelerator that pinned memory would serve, if it can be used here."""
    found = compat.current_accelerator()
    if found is None or found.type == "mps":
        return None
    return found if torch.get_device_module(found).is_available() else None


@contextmanager
def _context_of(accelerator: torch.device) -> Iterator[None]:
    """Keep pinning from waking a card that this process does not use.

    Page-locking needs a context. torch takes one that exists, else it makes one on the current
    device: card 0, in a process of torchrun that is meant for another card and has not used it yet.
    """
    module: Any = torch.get_device_module(accelerator)
    if getattr(module, "is_initialized", lambda: True)():
        yield
        return
    try:
        index = Device(accelerator.type).index
    except DeviceUnavailableError:  # LOCAL_RANK counts cards that this process is not shown
        index = None
    with module.device(index) if index is not None else contextlib.nullcontext():
        yield


def is_dense_host_memory(tensor: Tensor) -> bool:
    """Whether the tensor is of the only kind that can be pinned."""
    return (
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        # A wrapper around other tensors has no memory of its own.
        and not hasattr(tensor, "__tensor_flatten__")
    )


def _pin_tensor(tensor: Tensor) -> Tensor:
    if tensor.is_pinned():
        return tensor
    try:
        return _pinned_copy(tensor)
    except RuntimeError as error:
        if not _REFUSED.search(str(error)):
            raise
        raise _refusal(tensor, error) from error


def _pinned_copy(tensor: Tensor) -> Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        data = _pinned_copy(tensor.data)
        if issubclass(type(tensor), torch.nn.Parameter):
            parameter = data.as_subclass(type(tensor)).requires_grad_(tensor.requires_grad)
        else:  # a subclass of Tensor that is marked as a parameter
            parameter = torch.nn.Parameter(data, tensor.requires_grad)
        parameter.grad = None if tensor.grad is None else pin_memory(tensor.grad)
        parameter.__dict__.update(tensor.__dict__)
        return parameter
    if type(tensor) is not Tensor:
        copy = _pinned_copy(tensor.as_subclass(Tensor)).as_subclass(type(tensor))
        copy.__dict__.update(tensor.__dict__)
        return copy
    if tensor.is_contiguous() and not tensor.requires_grad:
        return tensor.pin_memory()
    # torch's `pin_memory` fails on an expanded tensor, of which it would write elements twice, and
    # cuts the history of one that requires grad; `copy_` does neither.
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


def _pin_foreign(value: object) -> object:
    try:
        own = getattr(value, "pin_memory", None)
    except Exception:  # an object that refuses to be asked has no such method
        return value
    if not callable(own) or is_a(value, type):
        return value
    result = own()
    return value if result is None else result


def _warn_left(data: object, tensor: Tensor) -> None:
    kind = _kind(tensor)

    def message() -> str:
        path = next((path for path, each in find_tensors(data) if each is tensor), "data")
        return (
            f"`{path}` is left as it is: it is {kind}, and only dense CPU tensors can be pinned. "
            "Fix: keep it a dense CPU tensor until the batch is moved to the device, or do not pin "
            "(`pin_memory=False`)"
        )

    # By kind, not by path: finding the path costs a walk, at every batch.
    warn_once(message, key=f"pin_memory leaves: {kind}")


def _kind(tensor: Tensor) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"a sparse tensor ({str(tensor.layout).removeprefix('torch.')})"
    if not tensor.is_cpu:
        return f"on {tensor.device}"
    if tensor.is_quantized:
        return "a quantized tensor"
    return f"a {type(tensor).__name__} without memory of its own"


def _refusal(tensor: Tensor, error: RuntimeError) -> PinMemoryError:
    found = "; ".join(f"{name}: {value}" for name, value in host_limits().items())
    reason = str(error).strip().partition("\n")[0]
    return PinMemoryError(
        f"the system refused to pin {format_bytes(tensor.nbytes)} of host memory: {reason}\n"
        f"  found: {found}\n"
        "  fix: raise the limit (`ulimit -l unlimited`; docker: `--ulimit memlock=-1`; WSL: more "
        "`memory=` in .wslconfig), or load without pinned memory (`pin_memory=False`)"
    )
