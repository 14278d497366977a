"""The same snapshot from nvidia-smi, where the NVML binding is not installed."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from typing import Any

from devicekit.children import run
from devicekit.monitor.data import Gpu, GpuProcess, Snapshot
from devicekit.monitor.numbering import Orders, number_gpus
from devicekit.monitor.nvml import Unavailable
from devicekit.monitor.own import own_memory
from devicekit.monitor.reasons import UNAVAILABLE

__all__ = ["number", "smi_snapshot"]

TIMEOUT_S = 5.0
_MIB = 1024**2
_TOO_LARGE = 1e12  # for any of the units; NVML has no such number
# nvidia-smi writes words into columns of numbers.
_WORDS = {
    "": "not_supported",
    "n/a": "not_supported",
    "not supported": "not_supported",
    "not found": "not_found",
    "gpu is lost": "gpu_lost",
    "gpu requires reset": "reset_required",
    "insufficient permissions": "permission",
    "unknown error": "unknown_error",
}
# The key, nvidia-smi's name for it, and the factor to the unit of the key (`None`: text).
_COLUMNS: tuple[tuple[str, str, int | None], ...] = (
    ("nvml_index", "index", 1),
    ("uuid", "uuid", None),
    ("name", "name", None),
    ("pci_bus_id", "pci.bus_id", None),
    ("temperature_celsius", "temperature.gpu", 1),
    ("power_milliwatts", "power.draw", 1000),
    ("power_limit_milliwatts", "power.limit", 1000),
    ("memory_total_bytes", "memory.total", _MIB),
    ("memory_used_bytes", "memory.used", _MIB),
    ("memory_free_bytes", "memory.free", _MIB),
    ("utilization_percent", "utilization.gpu", 1),
    ("driver", "driver_version", None),
    ("compute_capability", "compute_cap", None),
)


def number(text: str) -> tuple[float | None, str | None]:
    """Read a number out of nvidia-smi's output: the number, or the reason why there is none.

    Example:
        >>> number("87 W"), number("[Insufficient Permissions]")
        ((87.0, None), (None, 'permission'))
    """
    word = text.strip().strip("[]").lower()
    if word in _WORDS:
        return None, _WORDS[word]
    found = re.match(r"[-+]?\d+(\.\d+)?", word)
    if found is None:
        return None, "not_reported"
    amount = float(found.group())
    return (amount, None) if abs(amount) < _TOO_LARGE else (None, "implausible")


def smi_snapshot(problem: Unavailable, orders: Orders) -> Snapshot:
    """Take a snapshot with nvidia-smi.

    Args:
        problem: Why NVML could not be asked; it becomes a note.
        orders: As in `number_gpus`.

    Raises:
        Unavailable: nvidia-smi failed; or it is not installed either, then it is `problem`.
    """
    if shutil.which("nvidia-smi") is None:
        raise problem
    rows = _gpu_rows()
    apps = _query("compute-apps", ("gpu_uuid", "pid", "process_name", "used_gpu_memory"))
    gpus = [_gpu(row, apps) for row in rows]
    numbered = number_gpus(gpus, os.environ, orders)
    driver = rows[0].get("driver") if rows else None
    reasons = {"driver_max_cuda": "not_reported"}
    if driver is None:
        reasons["driver"] = "not_reported"
    sentence = remedy = ""
    if not gpus:
        reasons["gpus"] = "no_gpu"
        sentence, remedy = UNAVAILABLE["no_gpu"]
    return Snapshot(
        time_unix_seconds=time.time(),
        source="nvidia-smi",
        driver=driver,
        gpus=numbered,
        own=own_memory(numbered),
        problem=sentence,
        remedy=remedy,
        notes=(_note(problem),),
        reasons=reasons,
    )


def _note(problem: Unavailable) -> str:
    if problem.reason == "no_binding":
        return (
            "Read from nvidia-smi, because nvidia-ml-py is not installed; for all there is to "
            "know, run: pip install 'torch-devicekit[monitor]'"
        )
    return f"Read from nvidia-smi. {problem.sentence} {problem.remedy}"


def _gpu_rows() -> list[dict[str, str]]:
    keys = [key for key, _, _ in _COLUMNS]
    names = tuple(name for _, name, _ in _COLUMNS)
    try:
        rows = _query("gpu", names)
    except Unavailable as failed:
        if "not a valid field" not in failed.sentence:
            raise
        # Before driver 510 nvidia-smi does not know `compute_cap`.
        rows = _query("gpu", names[:-1])
    return [dict(zip(keys, row, strict=False)) for row in rows]


def _query(what: str, names: tuple[str, ...]) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-{what}={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        done = run(command, timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise Unavailable("nvidia_smi_failed", f"no answer in {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise Unavailable("nvidia_smi_failed", str(error)) from None
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
        raise Unavailable("nvidia_smi_failed", said.splitlines()[0][:200])
    try:
        # The csv module, because names may hold commas.
        rows = [*csv.reader(done.stdout.splitlines(), skipinitialspace=True)]
    except csv.Error as error:
        raise Unavailable("nvidia_smi_failed", f"its output is no table: {error}") from None
    return [row for row in rows if len(row) >= len(names)]


def _gpu(row: dict[str, str], apps: list[list[str]]) -> Gpu:
    values: dict[str, Any] = {}
    reasons = {
        "compute_capability": "not_reported",
        "driver_model": "not_reported",
        "memory_reserved_bytes": "not_reported",
    }
    for key, _, factor in _COLUMNS:
        if key not in row or key == "driver":
            continue
        if factor is None:
            value, reason = row[key], _WORDS.get(row[key].strip("[]").lower())
            values[key] = None if reason else value
        else:
            amount, reason = number(row[key])
            values[key] = None if amount is None else round(amount * factor)
        if reason:
            reasons[key] = reason
        else:
            reasons.pop(key, None)
    listed = [app for app in apps if app[0] == row.get("uuid")]
    processes = tuple(_process(app) for app in listed if re.fullmatch(r"\d{1,10}", app[1]))
    if len(processes) < len(listed):
        reasons["processes"] = "not_reported"
    return replace(Gpu(nvml_index=0), processes=processes, reasons=reasons, **values)


def _process(app: list[str]) -> GpuProcess:
    memory, reason = number(app[3])
    name, pid = re.split(r"[\\/]", app[2])[-1], int(app[1])
    reasons = {"sm_percent": "not_reported"}
    if reason:
        reasons["memory_used_bytes"] = reason
    if name.startswith("["):
        reasons["name"] = _WORDS.get(name.strip("[]").lower(), "not_reported")
    return GpuProcess(
        pid=pid,
        name=None if name.startswith("[") else name,
        kind="compute",
        memory_used_bytes=None if memory is None else round(memory * _MIB),
        sm_percent=None,
        is_this_process=pid == os.getpid(),
        reasons=reasons,
    )
