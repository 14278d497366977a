"""Putting the report together: ask everybody, then judge each pair."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from devicekit.driver import ask_driver
from devicekit.env import judge
from devicekit.env.data import EnvGpu, Environment, Nvcc, Problem
from devicekit.env.toolkits import cuda_home, find_nvccs
from devicekit.env.torch_facts import torch_facts
from devicekit.monitor import Snapshot, snapshot
from devicekit.monitor.visible import same_uuid

__all__ = ["environment"]

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ROCM_HOME",
    "HSA_OVERRIDE_GFX_VERSION",
    "ZE_AFFINITY_MASK",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ENABLE_MPS_FALLBACK",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCH_CUDA_ARCH_LIST",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_DEBUG",
    "NCCL_P2P_DISABLE",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
    "DEVICEKIT_DEVICE",
    "DEVICEKIT_STRICT",
)
PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "numpy",
    "torch-devicekit",
    "nvidia-ml-py",
    "pynvml",
    "nvidia-ml-py3",
    "rich",
)
_PCI = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def environment() -> Environment:
    """Report what is installed for computing on GPUs, and whether it fits together.

    torch is asked in a process of its own, where it also runs one small kernel on each GPU: this
    process imports no torch and gets no CUDA context. It takes as long as importing torch.

    It raises nothing: what could not be asked is in `problems`, and a value that is not known is
    `None` with its reason in `reasons`.

    Example:
        >>> report = environment()
        >>> report.build in ("cpu", "cuda", "rocm", "xpu")
        True
        >>> all(verdict.rule and verdict.source for verdict in report.verdicts)
        True
    """
    problems: list[Problem] = []

    def ask(probe: str, question: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return question()
        except Exception as error:
            # A report must come out of any machine; the error is part of it.
            problems.append(Problem(probe=probe, sentence=f"{type(error).__name__}: {error}"))
            return otherwise

    torch: dict[str, Any] = ask("torch", torch_facts, {"failed": "see the problems"})
    if "failed" in torch:
        problems.append(Problem(probe="torch", sentence=str(torch["failed"])))
    for name, text in (torch.get("errors") or {}).items():
        problems.append(Problem(probe=f"torch: {name}", sentence=text))
    shot = ask("monitor", snapshot, Snapshot(reasons={"gpus": "nvml_error"}))
    packages = ask("packages", _packages, {})
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "system": ask("system", platform.platform, ""),
        "nvccs": ask("nvcc", lambda: find_nvccs(os.environ), ()),
        "gpu_in_pci": ask("pci", lambda: _gpu_in_pci(_PCI), None),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "packages": packages,
    }
    reasons = {"gpu_in_pci": "not_supported"}
    facts |= _about_torch(torch, packages, reasons)
    facts |= ask("driver", lambda: _about_driver(shot, reasons), {})
    home = ask("cuda_home", lambda: cuda_home(os.environ), None)
    facts |= _about_nvcc(facts["nvccs"], home)
    reasons |= {key: "not_found" for key in ("nvcc", "cuda_home") if facts[key] is None}
    used = [nvcc for nvcc in facts["nvccs"] if nvcc.used]
    if used and used[0].version is None:
        reasons["nvcc"] = used[0].reasons["version"]
    facts["gpus"] = ask("gpus", lambda: _gpus(shot, torch), ())
    report = Environment(**facts, reasons=reasons)
    verdicts = ask("verdicts", lambda: judge.verdicts(report, torch, shot), ())
    return replace(report, verdicts=verdicts, problems=tuple(problems))


def _about_torch(
    torch: Mapping[str, Any], packages: Mapping[str, str], reasons: dict[str, str]
) -> dict[str, Any]:
    error = torch.get("import_error") or torch.get("failed")
    keys = ("build", "build_cuda", "build_hip", "cudnn", "nccl", "cuda_available")
    if error:
        code = "not_installed" if torch.get("missing") else "torch_broken"
        reasons |= dict.fromkeys((*keys, "build_archs"), code)
        if "torch" not in packages:
            reasons["torch"] = code
        return {"torch": packages.get("torch"), "torch_error": error}
    build: Literal["cpu", "cuda", "rocm", "xpu"] = "cpu"
    if torch["cuda"]:
        build = "cuda"
    elif torch["hip"]:
        build = "rocm"
    elif torch["xpu"]:
        build = "xpu"
    reasons |= dict.fromkeys(keys, f"{build}_build")
    return {
        "torch": torch["version"],
        "build": build,
        "build_cuda": torch["cuda"],
        "build_hip": torch["hip"],
        "build_archs": tuple(torch["archs"] or ()),
        "cudnn": _cudnn(torch["cudnn"]) if build == "cuda" else None,
        "nccl": ".".join(str(part) for part in torch["nccl"]) if torch["nccl"] else None,
        "cuda_available": torch["available"],
    }


def _cudnn(number: int | None) -> str | None:
    """Return cuDNN's version from its number: 8902 is 8.9.2, and 91002 is 9.10.2."""
    if not number:
        return None
    thousands = 10000 if number >= 90000 else 1000
    return f"{number // thousands}.{number % thousands // 100}.{number % 100}"


def _about_driver(shot: Snapshot, reasons: dict[str, str]) -> dict[str, Any]:
    driver, cuda = shot.driver, shot.driver_max_cuda
    if driver is None or cuda is None:
        # Where NVML was not asked: the driver's kernel module, and its library for CUDA.
        driver = driver or _kernel_module_version(Path("/proc"))
        supported = ask_driver().cuda
        cuda = cuda or (f"{supported[0]}.{supported[1]}" if supported else None)
    code = shot.reason or "not_reported"
    reasons |= {"driver": code} if driver is None else {}
    reasons |= {"driver_max_cuda": code} if cuda is None else {}
    if not shot.gpus:
        reasons["gpus"] = code
    return {"driver": driver, "driver_max_cuda": cuda}


def _kernel_module_version(proc: Path) -> str | None:
    try:
        text = (proc / "driver" / "nvidia" / "version").read_text()
    except OSError:
        return None
    matched = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return matched[1] if matched else None


def _about_nvcc(nvccs: tuple[Nvcc, ...], home: Path | None) -> dict[str, Any]:
    used = [nvcc for nvcc in nvccs if nvcc.used]
    return {
        "nvcc": used[0].version if used else None,
        "cuda_home": str(home) if home else None,
    }


def _gpu_in_pci(folder: Path) -> bool | None:
    """Tell whether an NVIDIA GPU is on the bus; `None` where that cannot be seen."""
    if not folder.is_dir():
        return None
    for device in folder.iterdir():
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS):
            return True
    return False


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus(shot: Snapshot, torch: Mapping[str, Any]) -> tuple[EnvGpu, ...]:
    """Join what NVML knows of each GPU with what torch found on it."""
    left = list(torch.get("devices") or ())
    found = []
    for gpu in shot.gpus:
        device = next(
            (each for each in left if _is_same(each, gpu.uuid, gpu.cuda_index)),
            None,
        )
        if device is not None:
            left.remove(device)
        index = gpu.cuda_index if device is None else device["index"]
        found.append(
            EnvGpu(
                nvml_index=gpu.nvml_index,
                cuda_index=index,
                uuid=gpu.uuid,
                name=gpu.name,
                compute_capability=gpu.compute_capability,
                memory_total_bytes=gpu.memory_total_bytes,
                kernel=None if device is None else device.get("kernel"),
                reasons={**gpu.reasons, "kernel": "not_visible"}
                if device is None
                else {key: why for key, why in gpu.reasons.items() if key != "cuda_index"},
            )
        )
    # Without NVML (or for AMD's GPUs): what torch says alone.
    for device in left:
        found.append(
            EnvGpu(
                nvml_index=None,
                cuda_index=device["index"],
                uuid=device.get("uuid"),
                name=device.get("name"),
                compute_capability=device.get("capability") if torch.get("cuda") else None,
                memory_total_bytes=device.get("memory"),
                kernel=device.get("kernel"),
                reasons={"nvml_index": "not_reported"},
            )
        )
    return tuple(found)


def _is_same(device: Mapping[str, Any], uuid: str | None, cuda_index: int | None) -> bool:
    if device.get("uuid") and uuid:
        return same_uuid(device["uuid"], uuid)
    return cuda_index is not None and device["index"] == cuda_index
