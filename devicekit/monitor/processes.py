"""The processes on a GPU: who they are and what they use."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from devicekit.monitor.data import GpuProcess
from devicekit.monitor.nvml import Nvml

__all__ = ["gpu_processes", "is_wsl"]

PROC = Path("/proc")
# The inode of the first process-id namespace is a constant of Linux (PROC_PID_INIT_INO).
_HOST_NAMESPACE = "pid:[4026531836]"
_NOT_AVAILABLE = 2**64 - 1
_LARGEST_PID = 2**31 - 1
# In the third version of the call these drivers fill a longer struct than the binding reads, so
# that all entries but the first are garbage (nvitop issue 75); the second version is right.
_BROKEN_V3 = ((535, 43), (535, 98))

Kind = Literal["compute", "graphics", "compute+graphics"]


def gpu_processes(
    nvml: Nvml,
    handle: object,
    *,
    driver: str | None,
    memory_total: int | None,
    no_memory: str,
    mig_reason: str | None,
) -> tuple[tuple[GpuProcess, ...], str | None]:
    """List the processes on a GPU or MIG device.

    Args:
        nvml: The open session.
        handle: NVML's handle.
        driver: The version of the driver.
        memory_total: The memory of the GPU in bytes; no process can hold more.
        no_memory: The reason to give where NVML has no number for the memory of a process.
        mig_reason: The reason why there is no utilisation per process, if that is known.

    Returns:
        The processes by memory, the largest first, and the reason why they could not be listed.
    """
    used: dict[int, int | None] = {}
    kinds: dict[int, Kind] = {}
    for kind in ("compute", "graphics"):
        rows, reason = nvml.first(_list_functions(kind.capitalize(), driver), handle)
        if reason and kind == "graphics":
            continue
        if reason:
            return (), reason
        if not _believable(rows):
            return (), "implausible"
        for row in rows:
            used[row.pid] = None if row.usedGpuMemory == _NOT_AVAILABLE else row.usedGpuMemory
            kinds[row.pid] = "compute+graphics" if row.pid in kinds else _kind(kind)
    found_na = any(value is None for value in used.values())
    samples, no_sample = ({}, mig_reason) if mig_reason else _samples(nvml, handle)
    found = []
    for pid, memory in used.items():
        reasons: dict[str, str] = {}
        if memory is None:
            reasons["memory_used_bytes"] = no_memory
        elif memory_total is not None and memory > memory_total:
            memory, reasons["memory_used_bytes"] = None, "implausible"
        # No sample means idle, unless the driver hides things: then it means nothing.
        sm = samples.get(pid, None if found_na or no_sample else 0)
        if sm is None:
            reasons["sm_percent"] = no_sample or "no_sample"
        name, why = _process_name(nvml, pid)
        if why:
            reasons["name"] = why
        found.append(
            GpuProcess(
                pid=pid,
                name=name,
                kind=kinds[pid],
                memory_used_bytes=memory,
                sm_percent=sm,
                is_this_process=pid == os.getpid(),
                reasons=reasons,
            )
        )
    return tuple(sorted(found, key=lambda each: (-(each.memory_used_bytes or 0), each.pid))), None


def _kind(kind: str) -> Kind:
    return "compute" if kind == "compute" else "graphics"


def _list_functions(kind: str, driver: str | None) -> tuple[str, ...]:
    name = f"nvmlDeviceGet{kind}RunningProcesses"
    release = tuple(int(number[:9]) for number in re.findall(r"\d+", driver or ""))[:2]
    if _BROKEN_V3[0] <= release < _BROKEN_V3[1]:
        return (f"{name}_v2", f"{name}_v3")
    return (f"{name}_v3", f"{name}_v2", name)


def _believable(rows: Sequence[Any]) -> bool:
    """Tell a list of processes from a struct that was read with the wrong length."""
    counts = Counter(row.pid for row in rows)
    return all(0 < pid <= _LARGEST_PID and count == 1 for pid, count in counts.items())


def _samples(nvml: Nvml, handle: object) -> tuple[dict[int, int], str | None]:
    """Return the newest utilisation per process, and the reason if it cannot be asked."""
    second_ago = int((time.time() - 1) * 1e6)
    rows, reason = nvml.ask("nvmlDeviceGetProcessUtilization", handle, second_ago)
    # NotFound is how NVML says that the buffer of samples is empty.
    if reason in ("not_found", "no_sample"):
        return {}, None
    if reason:
        return {}, reason
    newest = sorted(rows, key=lambda sample: sample.timeStamp)
    return {sample.pid: int(sample.smUtil) for sample in newest if sample.smUtil <= 100}, None


def _process_name(nvml: Nvml, pid: int) -> tuple[str | None, str | None]:
    """Return the file name of the program of a process, or the reason why it is not known."""
    if _in_container() and not _uses_gpu(pid):
        # The number is the host's; a process that has it in here is another one.
        return None, "container"
    name, reason = nvml.ask("nvmlSystemGetProcessName", pid)
    if name:
        return re.split(r"[\\/]", str(name).split("\0")[0])[-1], None
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip(), None
    except OSError:
        return None, "exited" if reason == "not_found" else reason


def _in_container() -> bool:
    try:
        return os.readlink(PROC / "self" / "ns" / "pid") != _HOST_NAMESPACE
    except OSError:
        return False


def _uses_gpu(pid: int) -> bool:
    """Whether the process with this number in here has a device file of a GPU open."""
    try:
        files = [os.readlink(entry) for entry in (PROC / str(pid) / "fd").iterdir()]
    except OSError:
        return False
    return any(file.startswith(("/dev/nvidia", "/dev/dxg")) for file in files)


def is_wsl() -> bool:
    """Whether this is Linux under Windows, where Windows manages the memory of the GPU."""
    try:
        return "microsoft" in (PROC / "version").read_text().lower()
    except OSError:
        return False
