"""Asking NVML: one session, and answers that are a value or a reason."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from devicekit.monitor.reasons import UNAVAILABLE

__all__ = ["Nvml", "Unavailable", "session"]

# The binding's exception classes, by the end of their names.
_CODES = {
    "ArgumentVersionMismatch": "driver_too_old",
    "DriverNotLoaded": "driver_not_loaded",
    "FunctionNotFound": "driver_too_old",
    "GpuIsLost": "gpu_lost",
    "LibRmVersionMismatch": "version_mismatch",
    "LibraryNotFound": "no_driver",
    "NoData": "no_sample",
    "NoPermission": "permission",
    "NotFound": "not_found",
    "NotSupported": "not_supported",
    "ResetRequired": "reset_required",
    "Timeout": "timeout",
    "Unknown": "unknown_error",
}


class Unavailable(Exception):
    """NVML cannot be used here.

    Attributes:
        reason: One of the codes in `devicekit.monitor.reasons.UNAVAILABLE`.
        sentence: What was found.
        remedy: What to do about it.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        text, self.remedy = UNAVAILABLE[reason]
        self.reason = reason
        self.sentence = f"{text} ({detail})" if detail else text
        super().__init__(self.sentence)


@dataclass
class Nvml:
    """An open session.

    Attributes:
        module: The binding, or a stand-in for it.
        missing: The functions that this driver turned out not to have, so that each is asked for
            once.
    """

    module: ModuleType
    missing: set[str] = field(default_factory=set)

    def ask(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, str | None]:
        """Call a function of the binding; return its value and `None`, or `None` and a reason."""
        function = getattr(self.module, name, None)
        if function is None:
            return None, "binding_too_old"
        if name in self.missing:
            return None, "driver_too_old"
        # What the unversioned functions raise where the driver lacks the newest version.
        mismatch: Any = getattr(self.module, "NVMLLibraryMismatchError", ())
        try:
            return _text(function(*args, **kwargs)), None
        except mismatch:
            self.missing.add(name)
            return None, "driver_too_old"
        except self.module.NVMLError as error:
            reason = _reason(error)
            if reason == "driver_too_old" and not kwargs:
                self.missing.add(name)
            return None, reason
        except UnicodeDecodeError:
            return None, "corrupt_text"
        except TypeError:
            # Bindings before 11.510 do not take `version=`.
            if not kwargs:
                raise
            return None, "binding_too_old"

    def first(self, names: tuple[str, ...], *args: Any) -> tuple[Any, str | None]:
        """Ask the functions in turn until one exists both in the binding and in the driver."""
        value: Any = None
        reason: str | None = "driver_too_old"
        for name in names:
            value, reason = self.ask(name, *args)
            if reason not in ("driver_too_old", "binding_too_old"):
                break
        return value, reason


@contextmanager
def session() -> Iterator[Nvml]:
    """Open NVML and close it again.

    NVML counts how often it was opened, so this does not disturb others in the process. It creates
    no CUDA context and does not initialise CUDA.

    Raises:
        Unavailable: There is no binding, the wrong one, or no driver.
    """
    module = _binding()
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        reason = _reason(error)
        if reason in UNAVAILABLE and reason != "nvml_error":
            raise Unavailable(reason) from None
        raise Unavailable("nvml_error", str(error)) from None
    try:
        yield Nvml(module)
    finally:
        try:
            module.nvmlShutdown()
        except module.NVMLError:
            # Somebody else closed it first, or the driver went away: it is closed either way.
            pass


def _binding() -> ModuleType:
    """Import `pynvml` and check that it is the one of nvidia-ml-py, without its warnings."""
    with warnings.catch_warnings():
        # The deprecated distribution `pynvml` warns with this sentence when it is imported.
        warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            if error.name == "pynvml":
                raise Unavailable("no_binding") from None
            raise Unavailable("wrong_binding", str(error)) from None
        except Exception as error:
            # The module of other distributions is for other versions of Python; what it raises is
            # in the sentence.
            raise Unavailable("wrong_binding", f"{type(error).__name__}: {error}") from None
    if not hasattr(module, "nvmlInitWithFlags") or not hasattr(module, "_nvmlGetFunctionPointer"):
        raise Unavailable("wrong_binding", getattr(module, "__file__", None) or "no file")
    return module


def _reason(error: Exception) -> str:
    return _CODES.get(type(error).__name__.removeprefix("NVMLError_"), "nvml_error")


def _text(value: Any) -> Any:
    """Decode what old bindings leave as bytes."""
    return value.decode() if isinstance(value, bytes) else value
