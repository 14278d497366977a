"""How the user of `FakeNvml` describes a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["FakeGpu", "FakeMig", "FakeProcess"]

GIB = 1024**3


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
