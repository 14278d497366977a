"""The verdicts: each pair of things that must fit, judged by the rules and by what torch did."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from devicekit.env.data import EnvGpu, Environment, Level, Verdict
from devicekit.env.rules import archs_and_gpu, build_and_driver, build_and_nvcc
from devicekit.monitor import UNAVAILABLE, Snapshot

__all__ = ["verdicts"]

_A_KERNEL_RAN = "torch ran a kernel just now, which counts more than any table"
_HERE = "devicekit, tried on this machine"
_TORCH_INSTALL = "https://pytorch.org/get-started/locally"


def verdicts(report: Environment, torch: Mapping[str, Any], shot: Snapshot) -> tuple[Verdict, ...]:
    """Judge a report.

    Args:
        report: What was found.
        torch: What torch said about itself.
        shot: The snapshot of the GPUs.
    """
    return tuple(_all(report, torch, shot))


def _all(report: Environment, torch: Mapping[str, Any], shot: Snapshot) -> Iterator[Verdict]:
    ran = any(gpu.kernel == "ok" for gpu in report.gpus)
    yield _torch(report)
    if report.build == "rocm":
        yield _rocm(report, torch)
    elif report.build is not None:
        yield from _driver(report, shot, ran)
        for gpu in report.gpus:
            if report.build_cuda is not None:
                yield _architecture(report, gpu)
        if report.build_cuda is not None and (report.driver is not None or report.gpus):
            yield _runtime(report, torch)
    if report.build not in ("rocm", None):
        yield build_and_nvcc(report.build_cuda, report.nvcc)
    if report.build == "cuda":
        yield from _home(report)
    if shot.reason == "wrong_binding" or any("pynvml" in note for note in shot.notes):
        sentence, remedy = UNAVAILABLE["wrong_binding"]
        rule = "nvidia-ml-py, pynvml and nvidia-ml-py3 all install a module pynvml"
        source = "the packages' files"
        yield _verdict(
            "NVML and its binding", "warning", "wrong_binding", sentence, rule, source, remedy
        )


def _verdict(
    pair: str, level: Level, code: str, sentence: str, rule: str, source: str, remedy: str = ""
) -> Verdict:
    return Verdict(
        pair=pair,
        level=level,
        code=code,
        sentence=sentence.rstrip("."),
        rule=rule,
        source=source,
        remedy=remedy,
    )


def _torch(report: Environment) -> Verdict:
    rule = "torch must be importable by this Python"
    if report.torch_error is None:
        found = f"torch {report.torch} imports; it is a {_kind(report)} build"
        return _verdict("Python and torch", "ok", "imports", found, rule, _HERE)
    if report.torch is None:
        found = "torch is not installed for this Python"
        remedy = f"Install it: {_TORCH_INSTALL}"
        return _verdict("Python and torch", "error", "torch_missing", found, rule, _HERE, remedy)
    found = f"torch {report.torch} is installed but does not import: {report.torch_error}"
    remedy = f"Install it again in a fresh environment: {_TORCH_INSTALL}"
    return _verdict("Python and torch", "error", "torch_broken", found, rule, _HERE, remedy)


def _kind(report: Environment) -> str:
    names = {
        "cpu": "CPU-only",
        "cuda": f"CUDA {report.build_cuda}",
        "rocm": f"ROCm {report.build_hip}",
        "xpu": "XPU",
    }
    return names[report.build or "cpu"]


def _driver(report: Environment, shot: Snapshot, ran: bool) -> Iterator[Verdict]:
    pair, rule = "build and driver", "a build with CUDA needs an NVIDIA driver to use a GPU"
    source = "torch.cuda"
    build = report.build_cuda
    if build is None:
        seen = bool(report.gpus) or report.gpu_in_pci
        if seen:
            found = "this machine has an NVIDIA GPU, and this build of torch cannot use it"
            remedy = f"Install a build with CUDA: {_TORCH_INSTALL}"
            yield _verdict(pair, "warning", "build_without_cuda", found, rule, source, remedy)
        else:
            found = "this build of torch needs no NVIDIA driver"
            yield _verdict(pair, "ok", "driver_not_needed", found, rule, source)
        return
    if shot.reason == "version_mismatch" and not ran:
        sentence, remedy = UNAVAILABLE["version_mismatch"]
        rule = "the libraries of the driver must be of the version of its loaded kernel module"
        yield _verdict(
            "driver and kernel module", "error", "version_mismatch", sentence, rule, "NVML", remedy
        )
        return
    if report.driver is None and report.driver_max_cuda is None and not ran:
        yield _no_driver(report, rule, source)
        return
    windows = sys.platform == "win32"
    judged = build_and_driver(build, report.driver, report.driver_max_cuda, windows=windows)
    yield _overruled(judged) if ran and judged.level != "ok" else judged


def _no_driver(report: Environment, rule: str, source: str) -> Verdict:
    pair, install = "build and driver", "Install the NVIDIA driver."
    found = f"torch was built for CUDA {report.build_cuda}, and no NVIDIA driver was found"
    if report.gpu_in_pci:
        found += ", although an NVIDIA GPU is in this machine"
        return _verdict(pair, "error", "no_driver", found, rule, source, install)
    found += "; torch runs on the CPU"
    remedy = f"{install[:-1]} if this machine has an NVIDIA GPU; in a container: --gpus all."
    return _verdict(pair, "warning", "no_driver", found, rule, source, remedy)


def _architecture(report: Environment, gpu: EnvGpu) -> Verdict:
    judged = archs_and_gpu(report.build_archs, gpu.compute_capability, _name(gpu))
    if judged.level == "error" and gpu.cuda_index is None:
        # Somebody may have hidden it because torch cannot use it.
        return replace(judged, level="warning", sentence=f"{judged.sentence}; it is hidden")
    return _overruled(judged) if gpu.kernel == "ok" and judged.level != "ok" else judged


def _overruled(judged: Verdict) -> Verdict:
    return replace(
        judged,
        level="ok",
        code="a_kernel_ran",
        sentence=f"{judged.sentence}; but torch ran a kernel",
        rule=_A_KERNEL_RAN,
        source=_HERE,
        remedy="",
    )


def _name(gpu: EnvGpu) -> str:
    place = f"cuda:{gpu.cuda_index}" if gpu.cuda_index is not None else f"GPU {gpu.nvml_index}"
    return f"{place} {gpu.name}" if gpu.name else place


def _runtime(report: Environment, torch: Mapping[str, Any]) -> Verdict:
    pair, rule = "torch and GPU", "each GPU that torch sees must run a kernel"
    failed = [gpu for gpu in report.gpus if gpu.kernel not in (None, "ok")]
    ran = [gpu for gpu in report.gpus if gpu.kernel == "ok"]
    if failed:
        found = "; ".join(f"{_name(gpu)}: {gpu.kernel}" for gpu in failed)
        # A GPU that is full or taken says nothing about what is installed.
        level: Level = "warning" if _busy(failed) else "error"
        return _verdict(pair, level, "kernel_failed", f"no kernel ran on {found}", rule, _HERE)
    if ran:
        names = ", ".join(f"cuda:{gpu.cuda_index}" for gpu in ran)
        return _verdict(pair, "ok", "kernels_ran", f"a kernel ran on {names}", rule, _HERE)
    masks = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    masked = [name for name in masks if name in report.variables]
    if masked:
        found = f"torch sees no GPU; {', '.join(masked)} is set and may hide them"
        remedy = f"Unset {masked[0]}."
        return _verdict(pair, "warning", "hidden", found, rule, _HERE, remedy)
    why = torch.get("not_available") or (torch.get("errors") or {}).get("available")
    found = f"torch.cuda.is_available() is {report.cuda_available}: {why}"
    return _verdict(pair, "error", "cuda_not_available", found, rule, _HERE)


def _busy(failed: list[EnvGpu]) -> bool:
    return all(
        "out of memory" in (gpu.kernel or "") or "busy or unavailable" in (gpu.kernel or "")
        for gpu in failed
    )


def _home(report: Environment) -> Iterator[Verdict]:
    """Warn where a variable points torch at a toolkit that is not there."""
    named = [name for name in ("CUDA_HOME", "CUDA_PATH") if report.variables.get(name)]
    if not named or report.nvcc is not None or any(nvcc.used for nvcc in report.nvccs):
        return
    exists = os.path.isdir(report.variables[named[0]])
    found = f"{named[0]} is set, but {'has no nvcc' if exists else 'is no folder'}"
    others = [nvcc.version for nvcc in report.nvccs if nvcc.version]
    remedy = f"Unset {named[0]}, or point it at a CUDA toolkit"
    remedy += f" (nvcc {', '.join(others)} is here)." if others else "."
    yield _verdict(
        "CUDA_HOME and nvcc",
        "warning",
        "cuda_home_without_nvcc",
        found,
        "torch compiles extensions with bin/nvcc in the folder that CUDA_HOME names",
        "torch.utils.cpp_extension",
        remedy,
    )


def _rocm(report: Environment, torch: Mapping[str, Any]) -> Verdict:
    pair = "build and GPU"
    rule = "a ROCm build runs on the GPUs whose gfx name it lists; NVIDIA's rules do not apply"
    source = "torch.cuda.get_arch_list"
    devices = torch.get("devices") or []
    ran = [device for device in devices if device.get("kernel") == "ok"]
    if ran:
        names = ", ".join(f"cuda:{device['index']}" for device in ran)
        return _verdict(pair, "ok", "kernels_ran", f"a kernel ran on {names}", rule, source)
    if not devices:
        found = f"torch finds no AMD GPU: {torch.get('not_available')}"
        return _verdict(pair, "warning", "no_gpu", found, rule, source)
    archs = {str(device.get("arch", "")).split(":")[0] for device in devices}
    lacking = sorted(arch for arch in archs if arch and arch not in report.build_archs)
    if lacking:
        found = f"this build has no kernels for {', '.join(lacking)}"
        remedy = f"Install a build for it: {_TORCH_INSTALL}"
        return _verdict(pair, "error", "no_kernels", found, rule, source, remedy)
    found = "; ".join(f"cuda:{each['index']}: {each.get('kernel')}" for each in devices)
    return _verdict(pair, "error", "kernel_failed", f"no kernel ran on {found}", rule, source)
