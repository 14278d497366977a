"""The exceptions and warnings of devicekit.

Every error says what was wrong, what was found, and how to mend it::

    DeviceError (RuntimeError)
    ├── DeviceSpecError (also ValueError)      what you asked for is not a device
    ├── DeviceUnavailableError                 it is one, but cannot be used here
    ├── DeviceMismatchError                    tensors that meet are on different devices
    ├── MoveError (also TypeError)             something could not be moved
    ├── PinMemoryError                         the system refused to pin host memory
    └── WorkerDeviceError                      a loader's worker met accelerator tensors

    DeviceFallbackWarning (UserWarning)        another device is used than the one asked for
"""

import os
import sys
import warnings
from argparse import ArgumentTypeError
from collections.abc import Callable

__all__ = [
    "DeviceError",
    "DeviceFallbackWarning",
    "DeviceMismatchError",
    "DeviceSpecError",
    "DeviceUnavailableError",
    "MoveError",
    "PinMemoryError",
    "WorkerDeviceError",
]


class DeviceError(RuntimeError):
    """The root of all errors that devicekit raises on purpose."""


# argparse prints the text of an ArgumentTypeError and swallows that of a ValueError: with this
# base, `parser.add_argument("--device", type=Device)` shows the user our sentence.
class DeviceSpecError(DeviceError, ValueError, ArgumentTypeError):
    """What was asked for is not a device: a wrong type, a misspelt name, a bad index."""


class DeviceUnavailableError(DeviceError, ArgumentTypeError):
    """The device asked for cannot be used on this machine.

    Attributes:
        requested: What was asked for, as text.
        reason: The code of the cause, one of `devicekit.probe.REASONS`.
    """

    def __init__(self, message: str, requested: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.requested = requested
        self.reason = reason

    def __reduce__(self) -> tuple[type["DeviceUnavailableError"], tuple[str, str, str]]:
        return type(self), (str(self), self.requested, self.reason)


class DeviceMismatchError(DeviceError):
    """Tensors that meet in one operation are on different devices."""


class MoveError(DeviceError, TypeError):
    """Something in the data could not be moved, or holds a tensor that moving cannot reach."""


class PinMemoryError(DeviceError):
    """The system refused to pin host memory."""


class WorkerDeviceError(DeviceError):
    """A data loader's worker process met tensors on an accelerator."""


class DeviceFallbackWarning(UserWarning):
    """Another device is used than the one that was asked for."""


_PACKAGE = os.path.dirname(__file__) + os.sep


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that called this package, however deep we are."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


_given: set[object] = set()


def warn_once(
    message: str | Callable[[], str],
    category: type[Warning] = UserWarning,
    *,
    key: str | None = None,
) -> None:
    """Warn as `warn` does, unless this process has been told the same before.

    Args:
        message: The text, or what makes it, called only for a warning that is given.
        category: The class of the warning.
        key: What the warning is known by; without one, the message.
    """
    known_by = message if key is None else key
    if known_by in _given:
        return
    warn(message if isinstance(message, str) else message(), category)
    _given.add(known_by)  # after it: where warnings are errors, every call must raise


def forget_warnings() -> None:
    """Let every warning be given once more, so that a test starts afresh."""
    _given.clear()


# Tracebacks show the name that users import.
for _name in __all__:
    globals()[_name].__module__ = "devicekit"
del _name
