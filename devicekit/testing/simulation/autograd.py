"""Backward passes: on the calling thread, and with exceptions that survive torch's device guard."""

import ctypes
import threading
from typing import Any

import torch

from devicekit.testing.simulation import private

__all__ = ["Guard", "run_backward"]


class _Pending(threading.local):
    """The exception that left a hook, while C++ unwinds."""

    error: BaseException | None = None


_pending = _Pending()

# `PyErr_Fetch` through a handle of its own: its arguments must be ready-made references, because
# converting anything while an exception is set makes ctypes give up.
_fetch = ctypes.PyDLL(None).PyErr_Fetch
_fetch.restype = None
_normalize = ctypes.PyDLL(None).PyErr_NormalizeException
_normalize.restype = None


def _privateuse1() -> Any:
    return private.DeviceType.PrivateUse1


class _Slots(threading.local):
    """Where `PyErr_Fetch` writes type, value and traceback."""

    def __init__(self) -> None:
        self.cells = (ctypes.c_void_p * 3)()
        self.references = tuple(
            ctypes.byref(self.cells, i * ctypes.sizeof(ctypes.c_void_p)) for i in range(3)
        )


_slots = _Slots()


class Guard(private.DeviceGuard or object):  # type: ignore[misc]
    """The device guard of the simulated accelerator.

    An exception that leaves a hook (of a tensor, a node or a saved tensor) unwinds through the
    guard's destructor while Python's error indicator is set. The destructor asks this object for
    its type, and calling a Python function in that state aborts the process. Looking an attribute
    up does not: so the property takes the exception away, and `run_backward` raises it again.
    """

    @property
    def type_(self, fetch: Any = _fetch, slots: Any = _slots) -> Any:
        """Return the function that returns the device type."""
        fetch(*slots.references)
        if slots.cells[0]:
            _normalize(*slots.references)
            _pending.error = _take(slots.cells)
        return _privateuse1


def _take(cells: Any) -> BaseException:
    """Turn the fetched pointers into an exception, and give up the references they hold."""
    error: BaseException = ctypes.cast(cells[1], ctypes.py_object).value
    if cells[2]:
        error.__traceback__ = ctypes.cast(cells[2], ctypes.py_object).value
    release = ctypes.pythonapi.Py_DecRef
    for pointer in cells:
        if pointer:
            release(ctypes.cast(pointer, ctypes.py_object))
    return error


def run_backward(*args: Any, **kwargs: Any) -> Any:
    """Run torch's engine as the simulation needs it; replaces `_engine_run_backward`.

    The engine's device threads are made at the first backward of the process, one for each device
    that the guard counts, which from Python is always one: so it has to run on the calling thread.
    """
    before, _pending.error = _pending.error, None
    try:
        with torch.autograd.set_multithreading_enabled(False):
            return private.engine_run_backward(*args, **kwargs)
    except SystemError:
        if _pending.error is None:
            raise
        raise _pending.error from None
    finally:
        _pending.error = before
