"""A stand-in for the module `pynvml`: NVIDIA GPUs, drivers and their faults on any machine.

`FakeNvml` behaves like the binding that the distribution nvidia-ml-py installs, as far as the
functions that monitors use go. It knows the faults that monitors meet: Windows' WDDM, MIG, lost
GPUs, drivers with other structs, functions the driver lacks, text as bytes. It was written from
NVIDIA's documentation, the binding's source and users' reports; it was not compared with hardware.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, Literal

__all__ = ["FakeGpu", "FakeMig", "FakeNvml", "FakeProcess"]

GIB = 1024**3

# The numbers of nvml.h, with the names that the binding gives to the exception classes.
ERRORS = {
    "Uninitialized": 1,
    "InvalidArgument": 2,
    "NotSupported": 3,
    "NoPermission": 4,
    "AlreadyInitialized": 5,
    "NotFound": 6,
    "InsufficientSize": 7,
    "InsufficientPower": 8,
    "DriverNotLoaded": 9,
    "Timeout": 10,
    "IrqIssue": 11,
    "LibraryNotFound": 12,
    "FunctionNotFound": 13,
    "CorruptedInforom": 14,
    "GpuIsLost": 15,
    "ResetRequired": 16,
    "OperatingSystem": 17,
    "LibRmVersionMismatch": 18,
    "InUse": 19,
    "Memory": 20,
    "NoData": 21,
    "ArgumentVersionMismatch": 25,
    "Unknown": 999,
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
DRIVER_MODELS = {"WDDM": 0, "TCC": 1, "MCDM": 2}
NO_INSTANCE = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class FakeProcess:
    """A process that uses a GPU.

    Attributes:
        pid: The process id, in the numbering of the host.
        memory: Used GPU memory in bytes; `None` is what the binding makes of "not available".
        name: What `nvmlSystemGetProcessName` says; `None` raises NotFound.
        graphics: A graphics process instead of a compute process.
        sm: The last sample of its utilisation in per cent; `None`: there is no sample.
    """

    pid: int
    memory: int | None = GIB
    name: str | bytes | None = "/usr/bin/python3"
    graphics: bool = False
    sm: int | None = None


@dataclass(frozen=True, kw_only=True)
class FakeMig:
    """One MIG device of a GPU; sizes in bytes."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    memory_total: int = 5 * GIB
    memory_used: int = 0
    processes: tuple[FakeProcess, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FakeGpu:
    """One GPU.

    Attributes:
        name: Its name, as the binding returns it.
        uuid: Its UUID; `None`: made from the index.
        pci_bus_id: Its place on the bus; `None`: made from the index.
        capability: The compute capability.
        memory_total: Bytes; so are `memory_used` (without what the driver reserves) and
            `memory_reserved`.
        temperature: Degrees Celsius.
        power: Milliwatts; so is `power_limit`.
        utilization: Per cent.
        processes: The processes on it.
        driver_model: "WDDM", "TCC" or "MCDM" on Windows; `None` on Linux (raises NotSupported).
        mig: Its MIG devices; one or more switch MIG mode on.
        lost: The name of the error that every question about it raises, such as "GpuIsLost".
        errors: For the name of a function: the name of the error it raises for this GPU.
    """

    name: str | bytes = "NVIDIA H100 80GB HBM3"
    uuid: str | None = None
    pci_bus_id: str | None = None
    capability: tuple[int, int] = (9, 0)
    memory_total: int = 80 * GIB
    memory_used: int = 2 * GIB
    memory_reserved: int = GIB // 2
    temperature: int = 40
    power: int = 100_000
    power_limit: int = 700_000
    utilization: int = 25
    processes: tuple[FakeProcess, ...] = ()
    driver_model: Literal["WDDM", "TCC", "MCDM"] | None = None
    mig: tuple[FakeMig, ...] = ()
    lost: str | None = None
    errors: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class _Handle:
    index: int
    mig: int | None = None


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
        self._replaced: list[ModuleType | None] = []
        described = [FakeGpu() for _ in range(gpus)] if isinstance(gpus, int) else list(gpus)
        self.NVMLError = _error_classes(self)
        self._machine = _Machine(self, described, driver, cuda_driver, init_error, binding)
        self._missing = {*missing, *self._machine.missing()}
        for name in dir(self._machine):
            if name.startswith("nvml") and name not in _NOT_IN[binding]:
                setattr(self, name, self._function(name))
        for name, value in CONSTANTS.items():
            setattr(self, name, value)
        if binding != "foreign":
            self._nvmlGetFunctionPointer = self._function_pointer

    def raise_error(self, name: str) -> None:
        """Raise the `NVMLError` of that name, such as "NotSupported"."""
        raise self.NVMLError(ERRORS[name])

    def _function(self, name: str) -> Callable[..., Any]:
        answer = getattr(self._machine, name)

        @functools.wraps(answer)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if name in self._missing:
                self.raise_error("FunctionNotFound")
            if not self.open_count and not name.startswith("nvmlInit"):
                self.raise_error("Uninitialized")
            self._machine.check(name, args)
            return answer(*args, **kwargs)

        return call

    def _function_pointer(self, name: str) -> Callable[..., Any]:
        if name in self._missing:
            self.raise_error("FunctionNotFound")
        return self._function(name)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"FakeNvml does not play {name!r}; it plays: "
            + ", ".join(sorted(known for known in vars(self) if known.startswith("nvml")))
        )

    def __enter__(self) -> FakeNvml:
        self._replaced.append(sys.modules.get("pynvml"))
        sys.modules["pynvml"] = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        replaced = self._replaced.pop()
        if replaced is None:
            del sys.modules["pynvml"]
        else:
            sys.modules["pynvml"] = replaced


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


def _error_classes(module: ModuleType) -> type[Exception]:
    """Give the module the exception classes of the binding: one base, one class per number."""

    class NVMLError(Exception):
        value: int
        _classes: dict[int, type[Exception]] = {}

        def __new__(cls, value: int | None = None) -> NVMLError:
            kind = cls._classes.get(value, cls) if value is not None else cls
            return Exception.__new__(kind)

        def __init__(self, value: int | None = None) -> None:
            if value is not None:
                self.value = value

        def __str__(self) -> str:
            return type(self).__name__.removeprefix("NVMLError_")

    NVMLError.__module__ = "pynvml"
    for name, value in ERRORS.items():
        kind = type(f"NVMLError_{name}", (NVMLError,), {"value": value, "__module__": "pynvml"})
        NVMLError._classes[value] = kind
        setattr(module, f"NVMLError_{name}", kind)
    return NVMLError


class _Machine:
    """What the functions answer; each method is the function of that name."""

    def __init__(
        self,
        module: FakeNvml,
        gpus: list[FakeGpu],
        driver: str,
        cuda_driver: int,
        init_error: str | None,
        binding: str,
    ) -> None:
        self.module = module
        self.gpus = gpus
        self.driver = driver
        self.release = tuple(int(part) for part in driver.split("."))
        self.cuda_driver = cuda_driver
        self.init_error = init_error
        self.old = binding != "nvidia-ml-py"
        self.foreign = binding == "foreign"

    def missing(self) -> set[str]:
        """Return the functions that a driver of this release does not have."""
        lists = [f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics")]
        gone: set[str] = set()
        # 535.98 dropped the third version; 535.104.05 brought it back.
        if self.release < (510, 39) or (535, 98) <= self.release < (535, 104):
            gone |= {f"{name}_v3" for name in lists}
        if self.release < (450, 0):
            gone |= {f"{name}_v2" for name in lists}
            gone |= {"nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"}
        return gone

    def check(self, name: str, args: tuple[Any, ...]) -> None:
        if not args or not isinstance(args[0], _Handle):
            return
        gpu = self.gpus[args[0].index]
        if gpu.lost:
            self.module.raise_error(gpu.lost)
        if name in gpu.errors:
            self.module.raise_error(gpu.errors[name])

    def text(self, value: str | bytes) -> str | bytes:
        if self.old:
            return value.encode() if isinstance(value, str) else value
        return value.decode() if isinstance(value, bytes) else value

    def gpu(self, handle: _Handle) -> FakeGpu:
        return self.gpus[handle.index]

    def part(self, handle: _Handle) -> FakeGpu | FakeMig:
        gpu = self.gpu(handle)
        return gpu if handle.mig is None else gpu.mig[handle.mig]

    def whole(self, handle: _Handle) -> FakeGpu:
        """Return the GPU, for questions that NVML does not answer for a MIG device."""
        if handle.mig is not None:
            self.module.raise_error("InvalidArgument")
        return self.gpu(handle)

    # the library ...

    def nvmlInit(self) -> None:
        if self.init_error:
            self.module.raise_error(self.init_error)
        self.module.open_count += 1

    def nvmlInitWithFlags(self, flags: int) -> None:
        self.nvmlInit()

    def nvmlShutdown(self) -> None:
        self.module.open_count -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        return self.text(self.driver)

    def nvmlSystemGetNVMLVersion(self) -> str | bytes:
        return self.text(f"12.{self.driver}")

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.cuda_driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda_driver

    def nvmlSystemGetProcessName(self, pid: int) -> str | bytes:
        for gpu in self.gpus:
            for process in (*gpu.processes, *(p for mig in gpu.mig for p in mig.processes)):
                if process.pid == pid and process.name is not None:
                    return self.text(process.name)
        self.module.raise_error("NotFound")
        raise AssertionError("not reached")

    # finding a GPU ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle:
        if not 0 <= index < len(self.gpus):
            self.module.raise_error("InvalidArgument")
        lost = self.gpus[index].lost
        if lost:
            self.module.raise_error(lost)
        return _Handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> _Handle:
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for index, gpu in enumerate(self.gpus):
            if wanted == self.uuid(index):
                return _Handle(index)
            for number, mig in enumerate(gpu.mig):
                if wanted == mig.uuid:
                    return _Handle(index, number)
        self.module.raise_error("NotFound")
        raise AssertionError("not reached")

    def nvmlDeviceGetIndex(self, handle: _Handle) -> int:
        return handle.index

    def uuid(self, index: int) -> str:
        return self.gpus[index].uuid or f"GPU-{index:08x}-0000-4000-8000-000000000000"

    def nvmlDeviceGetUUID(self, handle: _Handle) -> str | bytes:
        part = self.part(handle)
        return self.text(part.uuid if isinstance(part, FakeMig) else self.uuid(handle.index))

    # what it is ...

    def nvmlDeviceGetName(self, handle: _Handle) -> str | bytes:
        return self.text(self.part(handle).name)

    def nvmlDeviceGetPciInfo(self, handle: _Handle) -> SimpleNamespace:
        bus_id = self.whole(handle).pci_bus_id or f"00000000:{handle.index + 1:02X}:00.0"
        return SimpleNamespace(busId=self.text(bus_id))

    def nvmlDeviceGetCudaComputeCapability(self, handle: _Handle) -> tuple[int, int]:
        return self.gpu(handle).capability

    def nvmlDeviceGetCurrentDriverModel(self, handle: _Handle) -> int:
        model = self.whole(handle).driver_model
        if model is None:
            self.module.raise_error("NotSupported")
        return DRIVER_MODELS[model or ""]

    def nvmlDeviceGetMigMode(self, handle: _Handle) -> list[int]:
        if self.whole(handle).capability < (8, 0):
            self.module.raise_error("NotSupported")
        on = int(bool(self.gpu(handle).mig))
        return [on, on]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: _Handle) -> int:
        return 7 if self.gpu(handle).capability >= (8, 0) else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: _Handle, index: int) -> _Handle:
        if index >= len(self.gpu(handle).mig):
            self.module.raise_error("NotFound")
        return _Handle(handle.index, index)

    # what it does ...

    def nvmlDeviceGetTemperature(self, handle: _Handle, sensor: int) -> int:
        return self.whole(handle).temperature

    def nvmlDeviceGetPowerUsage(self, handle: _Handle) -> int:
        return self.whole(handle).power

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: _Handle) -> int:
        return self.whole(handle).power_limit

    def nvmlDeviceGetUtilizationRates(self, handle: _Handle) -> SimpleNamespace:
        gpu = self.gpu(handle)
        if gpu.mig:
            self.module.raise_error("NotSupported")
        return SimpleNamespace(gpu=gpu.utilization, memory=gpu.utilization // 2)

    def nvmlDeviceGetMemoryInfo(
        self, handle: _Handle, version: int | None = None
    ) -> SimpleNamespace:
        part = self.part(handle)
        if version is not None and self.old:
            raise TypeError("nvmlDeviceGetMemoryInfo() got an unexpected keyword 'version'")
        if version is not None and self.release < (510, 39):
            self.module.raise_error("FunctionNotFound")
        reserved = part.memory_reserved if isinstance(part, FakeGpu) else 0
        free = part.memory_total - part.memory_used - reserved
        if version is not None:
            return SimpleNamespace(
                total=part.memory_total, reserved=reserved, free=free, used=part.memory_used
            )
        # The first version of the struct counts what the driver reserves as used since 510.
        used = part.memory_used + (reserved if self.release >= (510, 39) else 0)
        return SimpleNamespace(total=part.memory_total, free=part.memory_total - used, used=used)

    # its processes ...

    def processes(self, handle: _Handle, graphics: bool) -> list[SimpleNamespace]:
        part, gpu = self.part(handle), self.gpu(handle)
        found = [(process, NO_INSTANCE) for process in part.processes]
        if isinstance(part, FakeGpu) and part.mig:
            # Asked for the whole GPU, NVML lists the processes of all instances without memory.
            found += [(p, number) for number, mig in enumerate(part.mig) for p in mig.processes]
        hidden = gpu.driver_model in ("WDDM", "MCDM") or (handle.mig is None and bool(gpu.mig))
        return [
            SimpleNamespace(
                pid=process.pid,
                usedGpuMemory=None if hidden else process.memory,
                gpuInstanceId=instance if handle.mig is None else handle.mig,
                computeInstanceId=NO_INSTANCE,
            )
            for process, instance in found
            if process.graphics is graphics
        ]

    def processes_v3(self, handle: _Handle, graphics: bool) -> list[SimpleNamespace]:
        true = self.processes(handle, graphics)
        if not (535, 43) <= self.release < (535, 98):
            return true
        # These drivers fill a longer struct: the binding reads its fields as further entries.
        rows = [
            number
            for process in true
            for number in (process.pid, 0, NO_INSTANCE, NO_INSTANCE)
        ]
        return [
            SimpleNamespace(
                pid=number, usedGpuMemory=NO_INSTANCE << 8, gpuInstanceId=0, computeInstanceId=0
            )
            for number in rows
        ][: len(true)]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: _Handle) -> list[SimpleNamespace]:
        return self.processes_v3(handle, graphics=False)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: _Handle) -> list[SimpleNamespace]:
        return self.processes(handle, graphics=False)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        return self.unversioned(handle, graphics=False)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: _Handle) -> list[SimpleNamespace]:
        return self.processes_v3(handle, graphics=True)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: _Handle) -> list[SimpleNamespace]:
        return self.processes(handle, graphics=True)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        return self.unversioned(handle, graphics=True)

    def unversioned(self, handle: _Handle, graphics: bool) -> list[SimpleNamespace]:
        if not self.old:
            return self.processes_v3(handle, graphics)
        if not self.foreign:
            return self.processes(handle, graphics)
        # The first version of the struct: a pid and its memory, nothing about instances.
        return [
            SimpleNamespace(pid=process.pid, usedGpuMemory=process.usedGpuMemory)
            for process in self.processes(handle, graphics)
        ]

    def nvmlDeviceGetProcessUtilization(
        self, handle: _Handle, since: int
    ) -> list[SimpleNamespace]:
        samples = [
            SimpleNamespace(pid=p.pid, timeStamp=since + 1, smUtil=p.sm, memUtil=0)
            for p in self.whole(handle).processes
            if p.sm is not None
        ]
        if not samples:
            self.module.raise_error("NotFound")
        return samples
