"""A stand-in for the module `pynvml`: NVIDIA GPUs, drivers and their faults on any machine.

`FakeNvml` behaves like the binding that the distribution nvidia-ml-py installs, as far as the
functions that monitors use go. It knows the faults that monitors meet: Windows' WDDM, MIG, lost
GPUs, drivers with other structs, functions the driver lacks, text as bytes. It was written from
NVIDIA's documentation, the binding's source and users' reports; it was not compared with hardware.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType, TracebackType
from typing import Any, ClassVar, Literal, cast

from devicekit.testing.nvml.described import FakeGpu as FakeGpu
from devicekit.testing.nvml.described import FakeMig as FakeMig
from devicekit.testing.nvml.described import FakeProcess as FakeProcess
from devicekit.testing.nvml.machine import Machine

__all__ = ["FakeGpu", "FakeMig", "FakeNvml", "FakeProcess"]

# The numbers of nvml.h and the binding's words for them, by the names of its exception classes.
ERRORS = {
    "Uninitialized": (1, "Uninitialized"),
    "InvalidArgument": (2, "Invalid Argument"),
    "NotSupported": (3, "Not Supported"),
    "NoPermission": (4, "Insufficient Permissions"),
    "AlreadyInitialized": (5, "Already Initialized"),
    "NotFound": (6, "Not Found"),
    "InsufficientSize": (7, "Insufficient Size"),
    "InsufficientPower": (8, "Insufficient External Power"),
    "DriverNotLoaded": (9, "Driver Not Loaded"),
    "Timeout": (10, "Timeout"),
    "IrqIssue": (11, "Interrupt Request Issue"),
    "LibraryNotFound": (12, "NVML Shared Library Not Found"),
    "FunctionNotFound": (13, "Function Not Found"),
    "CorruptedInforom": (14, "Corrupted infoROM"),
    "GpuIsLost": (15, "GPU is lost"),
    "ResetRequired": (16, "GPU requires restart"),
    "OperatingSystem": (17, "The operating system has blocked the request."),
    "LibRmVersionMismatch": (18, "RM has detected an NVML/RM version mismatch."),
    "InUse": (19, "In use by another client"),
    "Memory": (20, "Insufficient Memory"),
    "NoData": (21, "No data"),
    "ArgumentVersionMismatch": (25, "Argument version mismatch"),
    "Unknown": (999, "Unknown Error"),
}
CONSTANTS = {
    "NVML_SUCCESS": 0,
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_DRIVER_WDDM": 0,
    "NVML_DRIVER_WDM": 1,
    "NVML_DRIVER_MCDM": 2,
    "NVML_DEVICE_MIG_DISABLE": 0,
    "NVML_DEVICE_MIG_ENABLE": 1,
    "nvmlMemory_v2": 0x02000028,
}
# What a binding does not have, whatever the driver has.
_THIRD_VERSIONS = frozenset(
    {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"}
)
_NOT_IN: dict[str, frozenset[str]] = {
    "nvidia-ml-py": frozenset(),
    "old": _THIRD_VERSIONS,
    "foreign": _THIRD_VERSIONS
    | {
        "nvmlInitWithFlags",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetProcessUtilization",
    },
}


_ABSENT = object()


class FakeNvml(ModuleType):
    """A module that answers as `pynvml` does, for a machine that you describe.

    As a context manager it takes the place of `pynvml` in `sys.modules`, so that code that imports
    `pynvml` inside its functions (as devicekit does) sees it. Code that imported the real module
    before keeps that one.

    Args:
        gpus: The GPUs in the order of the bus, or how many default ones.
        driver: The version of the driver. It decides which functions and structs there are.
        cuda_driver: The newest CUDA that the driver supports, as NVML counts (12040 is 12.4).
        init_error: The name of the error that `nvmlInit` raises, such as "LibraryNotFound".
        missing: Names of functions that this driver does not have.
        binding: "nvidia-ml-py"; "old" for one of its releases before 11.515 (text as bytes, no
            `version=`, no third version of functions); "foreign" for the module of that name from
            nvidia-ml-py3 and the like (the same, and no versioned functions and no MIG).

    Attributes:
        calls: The names of the functions called so far.
        missing: The names of the functions that the driver does not have.
        open_count: How many `nvmlInit` are not yet paired with an `nvmlShutdown`.

    `FakeNvml.Gpu`, `FakeNvml.Mig` and `FakeNvml.Process` describe the machine.

    Example:
        >>> import devicekit
        >>> from devicekit.testing import FakeNvml
        >>> with FakeNvml([FakeNvml.Gpu(name="NVIDIA RTX 4090", temperature=61)]):
        ...     found = devicekit.snapshot()
        >>> found.gpus[0].name, found.gpus[0].temperature_celsius
        ('NVIDIA RTX 4090', 61)
    """

    Gpu = FakeGpu
    Mig = FakeMig
    Process = FakeProcess

    def __init__(
        self,
        gpus: int | Sequence[FakeGpu] = 1,
        *,
        driver: str = "550.54.14",
        cuda_driver: int = 12040,
        init_error: str | None = None,
        missing: Iterable[str] = (),
        binding: Literal["nvidia-ml-py", "old", "foreign"] = "nvidia-ml-py",
    ) -> None:
        super().__init__("pynvml", "A stand-in for the NVML binding.")
        self.calls: list[str] = []
        self.open_count = 0
        self._replaced: list[Any] = []
        described = [FakeGpu() for _ in range(gpus)] if isinstance(gpus, int) else list(gpus)
        self.NVMLError = _error_classes(self)
        self.NVMLLibraryMismatchError = type("NVMLLibraryMismatchError", (Exception,), {})
        self._machine = Machine(self, described, driver, cuda_driver, init_error, binding)
        self.missing = {*missing, *self._machine.lacking()}
        for name in dir(self._machine):
            if name.startswith("nvml") and name not in _NOT_IN[binding]:
                setattr(self, name, self._function(name))
        for name, value in CONSTANTS.items():
            setattr(self, name, value)
        if binding != "foreign":
            self._nvmlGetFunctionPointer = self._function_pointer

    def error(self, name: str) -> Exception:
        """Return the `NVMLError` of that name, such as "NotSupported"."""
        return self.NVMLError(ERRORS[name][0])

    def _function(self, name: str) -> Callable[..., Any]:
        answer = getattr(self._machine, name)

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if name in self.missing:
                raise self.error("FunctionNotFound")
            if not self.open_count and not name.startswith("nvmlInit"):
                raise self.error("Uninitialized")
            self._machine.check(name, args)
            return answer(*args, **kwargs)

        return call

    def _function_pointer(self, name: str) -> Callable[..., Any]:
        if name in self.missing:
            raise self.error("FunctionNotFound")
        return self._function(name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"FakeNvml does not play {name!r}; it plays: "
            + ", ".join(sorted(known for known in vars(self) if known.startswith("nvml")))
        )

    def __enter__(self) -> FakeNvml:
        self._replaced.append(sys.modules.get("pynvml", _ABSENT))
        sys.modules["pynvml"] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        replaced = self._replaced.pop()
        if replaced is _ABSENT:
            del sys.modules["pynvml"]
        else:
            sys.modules["pynvml"] = replaced


def _error_classes(module: ModuleType) -> type[Exception]:
    """Give the module the exception classes of the binding: one base, one class per number."""
    words = dict(ERRORS.values())

    class NVMLError(Exception):
        value: int
        _classes: ClassVar[dict[int, type[Any]]] = {}

        def __new__(cls, value: int | None = None) -> NVMLError:
            kind = cls if value is None else cls._classes.get(value, cls)
            return cast("NVMLError", Exception.__new__(kind))

        def __init__(self, value: int | None = None) -> None:
            if value is not None:
                self.value = value

        def __str__(self) -> str:
            return words.get(self.value, f"NVML Error with code {self.value}")

    NVMLError.__module__ = "pynvml"
    for name, (value, _) in ERRORS.items():
        kind = type(f"NVMLError_{name}", (NVMLError,), {"value": value, "__module__": "pynvml"})
        NVMLError._classes[value] = kind
        setattr(module, f"NVMLError_{name}", kind)
    return NVMLError
