"""The typed data of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from devicekit.errors import DeviceSpecError
from devicekit.records import Record

if TYPE_CHECKING:
    import torch

__all__ = ["SCHEMA_VERSION", "Gpu", "GpuProcess", "OwnMemory", "Snapshot"]

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class GpuProcess(Record):
    """A process that uses a GPU.

    Attributes:
        pid: The process id; in a container it is the host's.
        name: The file name of its program, without the folder.
        kind: What it uses the GPU for.
        memory_used_bytes: The GPU memory it holds.
        sm_percent: The part of the last second in which its kernels ran.
        is_this_process: Whether it is the process that asks.
    """

    pid: int
    name: str | None
    kind: Literal["compute", "graphics", "compute+graphics"]
    memory_used_bytes: int | None
    sm_percent: int | None
    is_this_process: bool


@dataclass(frozen=True, kw_only=True)
class Gpu(Record):
    """A GPU, or one MIG device of it, at one moment.

    Attributes:
        nvml_index: Its number in NVML and nvidia-smi, which is its place on the bus.
        cuda_index: Its number in CUDA and torch, under the variables of this process.
        mig_index: The number of the MIG device on its GPU.
        uuid: NVML's UUID.
        name: The product name.
        pci_bus_id: Its place on the bus.
        compute_capability: Such as "9.0".
        driver_model: "WDDM", "TCC" or "MCDM" on Windows.
        temperature_celsius: The temperature of the chip.
        power_milliwatts: The power it draws.
        power_limit_milliwatts: The power it may draw.
        memory_total_bytes: Its memory.
        memory_used_bytes: What processes hold of it.
        memory_reserved_bytes: What the driver keeps for itself (not part of the used memory).
        memory_free_bytes: What is left.
        utilization_percent: The part of the last period in which a kernel ran.
        unified_memory: Whether it shares the memory of the system.
        processes: The processes on it.
        mig_devices: Its MIG devices.
    """

    nvml_index: int
    cuda_index: int | None = None
    mig_index: int | None = None
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    driver_model: str | None = None
    temperature_celsius: int | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilization_percent: int | None = None
    unified_memory: bool = False
    processes: tuple[GpuProcess, ...] = ()
    mig_devices: tuple[Gpu, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnMemory(Record):
    """What this process holds on one CUDA device, as torch and as NVML count it.

    Attributes:
        cuda_index: The index of the device in torch.
        allocated_bytes: In tensors.
        reserved_bytes: Held by torch's caching allocator, tensors included.
        peak_allocated_bytes: The most there was in tensors.
        process_bytes: What NVML counts for this process.
        context_bytes: The difference of NVML's number and the reserved memory: the CUDA context,
            loaded kernels and libraries.
    """

    cuda_index: int
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    process_bytes: int | None = None
    context_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot(Record):
    """The GPUs of this machine at one moment.

    Attributes:
        schema_version: The version of the form of `to_dict()`; it grows when a key changes its
            meaning or goes away.
        time_unix_seconds: When it was taken.
        source: "nvml", "nvidia-smi", or `None` when neither answered.
        driver: The version of the driver, such as "550.54.14".
        driver_max_cuda: The newest CUDA that the driver supports, such as "12.4". nvidia-smi
            shows it as "CUDA Version". It is not the CUDA that is installed.
        gpus: The GPUs in NVML's order.
        own: The memory of this process, one entry for each CUDA device.
        problem: Why there are no GPUs, as a sentence; else empty.
        remedy: What to do about it.
        notes: What else to know, as sentences.
    """

    schema_version: int = SCHEMA_VERSION
    time_unix_seconds: float = 0.0
    source: Literal["nvml", "nvidia-smi"] | None = None
    driver: str | None = None
    driver_max_cuda: str | None = None
    gpus: tuple[Gpu, ...] = ()
    own: tuple[OwnMemory, ...] = ()
    problem: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()

    @property
    def reason(self) -> str | None:
        """The code of why there are no GPUs; `None` when there are."""
        return self.reasons.get("gpus")

    def gpu(self, device: int | str | torch.device) -> Gpu:
        """Return the GPU that torch calls by this device.

        Args:
            device: A CUDA index, a text such as "cuda:1", or a `torch.device`; "cuda" alone is
                index 0, because the current device is torch's to know.

        Raises:
            DeviceSpecError: No GPU here has that CUDA index.

        Example:
            >>> slow, fast = Gpu(nvml_index=0, cuda_index=1), Gpu(nvml_index=1, cuda_index=0)
            >>> Snapshot(gpus=(slow, fast)).gpu("cuda:1").nvml_index
            0
        """
        text = str(device)
        index = text.removeprefix("cuda").removeprefix(":") or "0"
        parts = [part for gpu in self.gpus for part in (gpu, *gpu.mig_devices)]
        for part in parts:
            if part.cuda_index is not None and str(part.cuda_index) == index:
                return part
        have = [f"cuda:{part.cuda_index}" for part in parts if part.cuda_index is not None]
        if have:
            found, remedy = ", ".join(have), "give one of these"
        elif self.gpus:
            found, remedy = "no CUDA device", "`reasons['cuda_index']` of its GPUs says why"
        else:
            found, remedy = "no GPU", f"{self.problem} {self.remedy}".strip()
        raise DeviceSpecError(f"`device` is {device!r}, but the snapshot has {found}: {remedy}")

    def __str__(self) -> str:
        from devicekit.monitor.table import as_markdown

        return as_markdown(self)
