"""What the functions of a fake NVML answer.

Each method that starts with `nvml` is the function of that name; NVIDIA documents what it does.
"""
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from devicekit.testing.nvml.described import FakeGpu, FakeMig

__all__ = ["Face", "Machine"]

DRIVER_MODELS = {"WDDM": 0, "TCC": 1, "MCDM": 2}
NO_INSTANCE = 0xFFFFFFFF


class Face(Protocol):
    """What the machine needs of the module that shows it."""

    open_count: int
    missing: set[str]
    NVMLLibraryMismatchError: type[Exception]

    def error(self, name: str) -> Exception:
        """Return the `NVMLError` of that name."""


@dataclass(frozen=True)
class Handle:
    index: int
    mig: int | None = None


class Machine:
    """What the functions answer; each method is the function of that name."""

    def __init__(
        self,
        module: Face,
        gpus: Sequence[FakeGpu],
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

    def lacking(self) -> set[str]:
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
        if not args or not isinstance(args[0], Handle):
            return
        gpu = self.gpus[args[0].index]
        if gpu.lost:
            raise self.module.error(gpu.lost)
        if name in gpu.errors:
            raise self.module.error(gpu.errors[name])

    def text(self, value: str | bytes) -> str | bytes:
        if self.old:
            return value.encode() if isinstance(value, str) else value
        return value.decode() if isinstance(value, bytes) else value

    def gpu(self, handle: Handle) -> FakeGpu:
        return self.gpus[handle.index]

    def part(self, handle: Handle) -> FakeGpu | FakeMig:
        gpu = self.gpu(handle)
        return gpu if handle.mig is None else gpu.mig[handle.mig]

    def whole(self, handle: Handle) -> FakeGpu:
        """Return the GPU, for questions that NVML does not answer for a MIG device."""
        if handle.mig is not None:
            raise self.module.error("InvalidArgument")
        return self.gpu(handle)

    # the library ...

    def nvmlInit(self) -> None:
        if self.init_error:
            raise self.module.error(self.init_error)
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
        raise self.module.error("NotFound")

    # finding a GPU ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        if not 0 <= index < len(self.gpus):
            raise self.module.error("InvalidArgument")
        lost = self.gpus[index].lost
        if lost:
            raise self.module.error(lost)
        return Handle(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str | bytes) -> Handle:
        wanted = uuid.decode() if isinstance(uuid, bytes) else uuid
        for index, gpu in enumerate(self.gpus):
            if wanted == self.uuid(index):
                return Handle(index)
            for number, mig in enumerate(gpu.mig):
                if wanted == mig.uuid:
                    return Handle(index, number)
        raise self.module.error("NotFound")

    def nvmlDeviceGetIndex(self, handle: Handle) -> int:
        return handle.index

    def uuid(self, index: int) -> str:
        return self.gpus[index].uuid or f"GPU-{index:08x}-0000-4000-8000-000000000000"

    def nvmlDeviceGetUUID(self, handle: Handle) -> str | bytes:
        part = self.part(handle)
        return self.text(part.uuid if isinstance(part, FakeMig) else self.uuid(handle.index))

    # what it is ...

    def nvmlDeviceGetName(self, handle: Handle) -> str | bytes:
        return self.text(self.part(handle).name)

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> SimpleNamespace:
        bus_id = self.whole(handle).pci_bus_id or f"00000000:{handle.index + 1:02X}:00.0"
        return SimpleNamespace(busId=self.text(bus_id))

    def nvmlDeviceGetCudaComputeCapability(self, handle: Handle) -> tuple[int, int]:
        return self.gpu(handle).capability

    def nvmlDeviceGetCurrentDriverModel(self, handle: Handle) -> int:
        model = self.whole(handle).driver_model
        if model is None:
            raise self.module.error("NotSupported")
        return DRIVER_MODELS[model]

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        if self.whole(handle).capability < (8, 0):
            raise self.module.error("NotSupported")
        on = int(bool(self.gpu(handle).mig))
        return [on, on]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        return 7 if self.gpu(handle).capability >= (8, 0) else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int) -> Handle:
        if index >= len(self.gpu(handle).mig):
            raise self.module.error("NotFound")
        return Handle(handle.index, index)

    # what it does ...

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int) -> int:
        return self.whole(handle).temperature

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        return self.whole(handle).power

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle) -> int:
        return self.whole(handle).power_limit

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> SimpleNamespace:
        gpu = self.gpu(handle)
        if gpu.mig:
            raise self.module.error("NotSupported")
        return SimpleNamespace(gpu=gpu.utilization, memory=gpu.utilization // 2)

    def nvmlDeviceGetMemoryInfo(
        self, handle: Handle, version: int | None = None
    ) -> SimpleNamespace:
        part = self.part(handle)
        if version is not None and self.old:
            raise TypeError("nvmlDeviceGetMemoryInfo() got an unexpected keyword 'version'")
        if version is not None and self.release < (510, 39):
            raise self.module.error("FunctionNotFound")
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

    def processes(self, handle: Handle, graphics: bool) -> list[SimpleNamespace]:
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

    def processes_v3(self, handle: Handle, graphics: bool) -> list[SimpleNamespace]:
        true = self.processes(handle, graphics)
        if not (535, 43) <= self.release < (535, 98):
            return true
        # These drivers fill a longer struct: the binding reads its fields as further entries.
        rows = [number for process in true for number in (process.pid, 0, NO_INSTANCE, NO_INSTANCE)]
        return [
            SimpleNamespace(
                pid=number, usedGpuMemory=NO_INSTANCE << 8, gpuInstanceId=0, computeInstanceId=0
            )
            for number in rows
        ][: len(true)]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Handle) -> list[SimpleNamespace]:
        return self.processes_v3(handle, graphics=False)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Handle) -> list[SimpleNamespace]:
        return self.processes(handle, graphics=False)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[SimpleNamespace]:
        return self.unversioned(handle, graphics=False)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Handle) -> list[SimpleNamespace]:
        return self.processes_v3(handle, graphics=True)

    def nvmlDeviceGetGraphicsRunningProcesses_v2(self, handle: Handle) -> list[SimpleNamespace]:
        return self.processes(handle, graphics=True)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Handle) -> list[SimpleNamespace]:
        return self.unversioned(handle, graphics=True)

    def unversioned(self, handle: Handle, graphics: bool) -> list[SimpleNamespace]:
        if not self.old:
            # The binding calls the third version and has an error of its own where it is missing.
            name = f"nvmlDeviceGet{'Graphics' if graphics else 'Compute'}RunningProcesses_v3"
            if name in self.module.missing:
                raise self.module.NVMLLibraryMismatchError(f"use {name}")
            return self.processes_v3(handle, graphics)
        if not self.foreign:
            return self.processes(handle, graphics)
        # The first version of the struct: a pid and its memory, nothing about instances.
        return [
            SimpleNamespace(pid=process.pid, usedGpuMemory=process.usedGpuMemory)
            for process in self.processes(handle, graphics)
        ]

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, since: int) -> list[SimpleNamespace]:
        samples = [
            SimpleNamespace(pid=p.pid, timeStamp=since + 1, smUtil=p.sm, memUtil=0)
            for p in self.whole(handle).processes
            if p.sm is not None
        ]
        if not samples:
            raise self.module.error("NotFound")
        return samples
