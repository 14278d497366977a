"""Taking a snapshot of the GPUs over NVML."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from devicekit.archs import INTEGRATED
from devicekit.driver import cuda_version
from devicekit.monitor.data import Gpu, Snapshot
from devicekit.monitor.numbering import Orders, number_gpus
from devicekit.monitor.nvml import Nvml, Unavailable, session
from devicekit.monitor.own import own_memory
from devicekit.monitor.processes import gpu_processes, is_wsl
from devicekit.monitor.reasons import UNAVAILABLE
from devicekit.monitor.smi import smi_snapshot

__all__ = ["snapshot", "snapshots"]

_DRIVER_MODELS = {0: "WDDM", 1: "TCC", 2: "MCDM"}
# The capabilities of chips without a memory of their own: Jetson and GB10.
_WITHOUT_MEMORY = {f"{major}.{minor}" for major, minor in INTEGRATED} | {"12.1"}
_MOST_GPUS = 1024  # a library that counts more is broken, and counting them all would never end
_MEMORY_KEYS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")


def snapshot() -> Snapshot:
    """Return the GPUs of this machine, their use and their processes, now.

    It asks NVML through nvidia-ml-py; where that is not installed, nvidia-smi. It never creates a
    CUDA context, does not initialise CUDA, and imports torch no more than you did. On a machine
    without GPUs, without a driver or without both tools it returns an empty snapshot with the
    reason, and raises nothing.

    Example:
        >>> found = snapshot()
        >>> found.gpus == () or found.gpus[0].nvml_index == 0
        True
        >>> (found.reason is None) == bool(found.gpus)
        True
    """
    return _snapshot({})


def snapshots(interval_s: float, count: int | None = None) -> Iterator[Snapshot]:
    """Yield a snapshot now and one after each interval, with NVML kept open in between.

    Args:
        interval_s: Seconds from one to the next.
        count: How many to yield; `None`: without end.

    Example:
        >>> len(list(snapshots(0.01, count=2)))
        2
    """
    orders: Orders = {}
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(session())
        except Unavailable:
            nvml = None
        start = time.monotonic()
        for number in itertools.count(1):
            yield _snapshot(orders) if nvml is None else _take(nvml, orders)
            if number == count:
                return
            time.sleep(max(start + number * interval_s - time.monotonic(), 0))


def _snapshot(orders: Orders) -> Snapshot:
    """Take a snapshot in a session of its own."""
    try:
        with session() as nvml:
            return _take(nvml, orders)
    except Unavailable as problem:
        if problem.reason not in ("no_binding", "wrong_binding"):
            return _empty(problem)
        try:
            return smi_snapshot(problem, orders)
        except Unavailable as failed:
            return _empty(failed)


def _empty(problem: Unavailable) -> Snapshot:
    """Return the snapshot of a machine that cannot be asked."""
    code = problem.reason
    return Snapshot(
        time_unix_seconds=time.time(),
        problem=problem.sentence,
        remedy=problem.remedy,
        own=own_memory(()),
        reasons={"source": code, "driver": code, "driver_max_cuda": code, "gpus": code},
    )


def _take(nvml: Nvml, orders: Orders) -> Snapshot:
    """Take a snapshot in an open session."""
    reasons: dict[str, str] = {}
    driver, reason = nvml.ask("nvmlSystemGetDriverVersion")
    if reason:
        reasons["driver"] = reason
    number, reason = nvml.first(
        ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion")
    )
    if reason:
        reasons["driver_max_cuda"] = reason
    count, reason = nvml.ask("nvmlDeviceGetCount")
    if count is not None and count > _MOST_GPUS:
        count, reason = 0, "nvml_error"
    gpus = [_gpu(nvml, index, driver) for index in range(count or 0)]
    problem = remedy = ""
    if not gpus:
        reasons["gpus"] = reason if reason in UNAVAILABLE else "nvml_error" if reason else "no_gpu"
        problem, remedy = UNAVAILABLE[reasons["gpus"]]
    numbered = number_gpus(gpus, os.environ, orders)
    return Snapshot(
        time_unix_seconds=time.time(),
        source="nvml",
        driver=driver,
        driver_max_cuda=_dotted(None if number is None else cuda_version(number)),
        gpus=numbered,
        own=own_memory(numbered),
        problem=problem,
        remedy=remedy,
        reasons=reasons,
    )


def _gpu(nvml: Nvml, index: int, driver: str | None) -> Gpu:
    handle, reason = nvml.ask("nvmlDeviceGetHandleByIndex", index)
    if reason:
        # One lost GPU must not hide the others: it is a row that says so.
        return Gpu(nvml_index=index, reasons=_all_missing(reason))
    reasons: dict[str, str] = {}

    def ask(key: str, *names: str, args: Sequence[object] = ()) -> Any:
        value, why = nvml.first(names, handle, *args)
        if why:
            reasons[key] = why
        return value

    name = ask("name", "nvmlDeviceGetName")
    uuid = ask("uuid", "nvmlDeviceGetUUID")
    bus = ask("pci_bus_id", "nvmlDeviceGetPciInfo")
    capability = ask("compute_capability", "nvmlDeviceGetCudaComputeCapability")
    model = ask("driver_model", "nvmlDeviceGetCurrentDriverModel")
    capability_text = _dotted(capability)
    model_name = _DRIVER_MODELS.get(model)
    # Only Windows has driver models; that Linux does not support the question is no finding.
    if reasons.get("driver_model") == "not_supported":
        reasons["driver_model"] = "not_applicable"
    memory, memory_reasons, unified = _memory(nvml, handle, capability_text)
    reasons |= memory_reasons
    mig = _mig_devices(nvml, handle, index, driver)
    rates = ask("utilization_percent", "nvmlDeviceGetUtilizationRates")
    if mig and rates is None:
        reasons["utilization_percent"] = "mig"
    processes, why = gpu_processes(
        nvml,
        handle,
        driver=driver,
        memory_total=memory.get("memory_total_bytes"),
        no_memory=_no_memory(model_name, bool(mig)),
        mig_reason="mig" if mig else None,
    )
    # They are listed once, with the MIG device they run on, where their memory is known.
    listed = {process.pid for part in mig for process in part.processes}
    if why:
        reasons["processes"] = why
    found = Gpu(
        nvml_index=index,
        uuid=uuid,
        name=name,
        pci_bus_id=None if bus is None else _text(bus.busId),
        compute_capability=capability_text,
        driver_model=model_name,
        temperature_celsius=ask("temperature_celsius", "nvmlDeviceGetTemperature", args=(0,)),
        power_milliwatts=ask("power_milliwatts", "nvmlDeviceGetPowerUsage"),
        power_limit_milliwatts=ask("power_limit_milliwatts", "nvmlDeviceGetEnforcedPowerLimit"),
        utilization_percent=None if rates is None else int(rates.gpu),
        unified_memory=unified,
        processes=tuple(process for process in processes if process.pid not in listed),
        mig_devices=mig,
        reasons=reasons,
    )
    return replace(found, **memory)


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _no_memory(model: str | None, mig: bool) -> str:
    """Return why NVML has no number for the memory of a process."""
    if model in ("WDDM", "MCDM") or is_wsl():
        return "wddm"
    return "mig" if mig else "not_supported"


def _all_missing(reason: str) -> dict[str, str]:
    always = {"nvml_index", "reasons", "unified_memory", "mig_index", "mig_devices"}
    return {key: reason for key in Gpu.__dataclass_fields__ if key not in always}


def _memory(
    nvml: Nvml, handle: object, capability: str | None
) -> tuple[dict[str, Any], dict[str, str], bool]:
    """Return the numbers of the memory, the reasons for the missing ones, and if it is unified."""
    version = getattr(nvml.module, "nvmlMemory_v2", None)
    reason: str | None = "binding_too_old"
    info: Any = None
    if version is not None:
        # The first version of the struct counts the driver's own memory as used (since 510).
        info, reason = nvml.ask("nvmlDeviceGetMemoryInfo", handle, version=version)
    reserved_reason = reason
    if info is None:
        info, reason = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
    if info is None:
        unified = reason == "not_supported" and capability in _WITHOUT_MEMORY
        why = "unified_memory" if unified else str(reason)
        return {}, dict.fromkeys((*_MEMORY_KEYS, "memory_reserved_bytes"), why), unified
    numbers = {
        "memory_total_bytes": int(info.total),
        "memory_used_bytes": int(info.used),
        "memory_free_bytes": int(info.free),
    }
    if reserved_reason:
        return numbers, {"memory_reserved_bytes": reserved_reason}, False
    return {**numbers, "memory_reserved_bytes": int(info.reserved)}, {}, False


def _mig_devices(nvml: Nvml, handle: object, index: int, driver: str | None) -> tuple[Gpu, ...]:
    mode, _ = nvml.ask("nvmlDeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        return ()
    count, _ = nvml.ask("nvmlDeviceGetMaxMigDeviceCount", handle)
    found = []
    for number in range(min(count or 0, _MOST_GPUS)):
        part, reason = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        # The numbers of MIG devices have gaps.
        if reason:
            continue
        name, _ = nvml.ask("nvmlDeviceGetName", part)
        uuid, _ = nvml.ask("nvmlDeviceGetUUID", part)
        memory, reasons, _ = _memory(nvml, part, None)
        processes, why = gpu_processes(
            nvml,
            part,
            driver=driver,
            memory_total=memory.get("memory_total_bytes"),
            no_memory="mig",
            mig_reason="mig",
        )
        if why:
            reasons["processes"] = why
        for key in _WHOLE_GPU_ONLY:
            reasons[key] = "mig"
        device = Gpu(
            nvml_index=index,
            mig_index=number,
            name=name,
            uuid=uuid,
            processes=processes,
            reasons=reasons,
        )
        found.append(replace(device, **memory))
    return tuple(found)


# What NVML tells of a GPU but not of its MIG devices.
_WHOLE_GPU_ONLY = (
    "pci_bus_id",
    "compute_capability",
    "driver_model",
    "temperature_celsius",
    "power_milliwatts",
    "power_limit_milliwatts",
    "utilization_percent",
)
