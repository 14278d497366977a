"""Devices for PyTorch users: resolve, move, guard, load, and test without a GPU.

The public names are resolved on first use, so that `import devicekit` imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devicekit.device import Device as Device
    from devicekit.diagnosis import audit as audit
    from devicekit.diagnosis import explain as explain
    from devicekit.env import environment as environment
    from devicekit.errors import DeviceError as DeviceError
    from devicekit.errors import DeviceFallbackWarning as DeviceFallbackWarning
    from devicekit.errors import DeviceMismatchError as DeviceMismatchError
    from devicekit.errors import DeviceSpecError as DeviceSpecError
    from devicekit.errors import DeviceUnavailableError as DeviceUnavailableError
    from devicekit.errors import MoveError as MoveError
    from devicekit.errors import PinMemoryError as PinMemoryError
    from devicekit.errors import WorkerDeviceError as WorkerDeviceError
    from devicekit.guards import guard as guard
    from devicekit.guards import same_device as same_device
    from devicekit.loader import DataLoader as DataLoader
    from devicekit.monitor import snapshot as snapshot
    from devicekit.move import to_device as to_device
    from devicekit.packing import pack as pack
    from devicekit.packing import unpack as unpack
    from devicekit.pin import pin_memory as pin_memory
    from devicekit.prefetch import prefetch_to_device as prefetch_to_device
    from devicekit.tree import find_tensors as find_tensors

__version__ = "0.1.0"

_HOME = {
    "DataLoader": "loader",
    "Device": "device",
    "DeviceError": "errors",
    "DeviceFallbackWarning": "errors",
    "DeviceMismatchError": "errors",
    "DeviceSpecError": "errors",
    "DeviceUnavailableError": "errors",
    "MoveError": "errors",
    "PinMemoryError": "errors",
    "WorkerDeviceError": "errors",
    "audit": "diagnosis",
    "environment": "env",
    "explain": "diagnosis",
    "find_tensors": "tree",
    "guard": "guards",
    "pack": "packing",
    "pin_memory": "pin",
    "prefetch_to_device": "prefetch",
    "same_device": "guards",
    "snapshot": "monitor",
    "to_device": "move",
    "unpack": "packing",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
