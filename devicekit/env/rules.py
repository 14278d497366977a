"""The rules that decide whether versions fit, each with its source.

They are tables and comparisons, without a look at this machine. What no rule covers is "unknown":
a new family of CUDA or an architecture in a new notation is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from devicekit.archs import arch_runs
from devicekit.env.data import Level, Verdict

__all__ = ["archs_and_gpu", "build_and_driver", "build_and_nvcc", "version"]

MINOR_COMPATIBILITY = "NVIDIA CUDA Compatibility, Minor Version Compatibility"
PROGRAMMING_GUIDE = "NVIDIA CUDA Programming Guide, Compute Capabilities"
EXTENSION_CHECK = "torch.utils.cpp_extension, the check of the CUDA version"

# The oldest driver for each family of CUDA, on Linux and on Windows.
_FAMILIES = {
    11: ("450.80.02", "452.39"),
    12: ("525.60.13", "528.33"),
    13: ("580", "580"),
}
# Before CUDA 11 each minor version needed the driver it came with.
_EXACT = {
    "10.0": ("410.48", "411.31"),
    "10.1": ("418.39", "418.96"),
    "10.2": ("440.33", "441.22"),
}


def version(text: str | None) -> tuple[int, ...]:
    """Return the numbers of a version; nothing when there are none.

    Example:
        >>> version("550.54.14"), version("12.4") > version("12"), version(None)
        ((550, 54, 14), True, ())
    """
    # Nine digits are enough to compare by, and Python refuses to read some thousand.
    return tuple(int(number[:9]) for number in re.findall(r"\d+", text or ""))


def build_and_driver(
    build: str, driver: str | None, driver_cuda: str | None, *, windows: bool = False
) -> Verdict:
    """Judge whether the driver can run a build of torch.

    Args:
        build: The CUDA of the build, such as "12.4".
        driver: The version of the driver, such as "550.54.14".
        driver_cuda: The newest CUDA the driver supports, such as "12.4".
        windows: Whether the driver is one for Windows.

    Example:
        >>> build_and_driver("12.8", "550.54.14", "12.4").code
        'minor_version_compatibility'
        >>> build_and_driver("13.0", "550.54.14", "12.4").level
        'error'
    """
    level, code, rule, remedy = _judge_driver(build, driver, driver_cuda, windows)
    fits = {"ok": "fits", "error": "does not fit"}.get(level, "may or may not fit")
    have = f"driver {driver or '(version not known)'}"
    if driver_cuda:
        have += f", which supports CUDA up to {driver_cuda}"
    return Verdict(
        pair="build and driver",
        level=level,
        code=code,
        sentence=f"torch for CUDA {build} {fits} {have}",
        rule=rule,
        source=MINOR_COMPATIBILITY,
        remedy=remedy,
    )


def _judge_driver(
    build: str, driver: str | None, driver_cuda: str | None, windows: bool
) -> tuple[Level, str, str, str]:
    """Return level, code, rule and remedy."""
    wanted, supported, known = version(build), version(driver_cuda), version(driver)
    if wanted and supported and supported[:2] >= wanted[:2]:
        rule = "a driver runs every CUDA up to the one it supports"
        return "ok", "driver_supports_build", rule, ""
    family, minor = (*wanted, 0, 0)[:2]
    # Before CUDA 11 minor versions were not compatible.
    exact = _EXACT.get(f"{family}.{minor}")
    oldest = exact if family < 11 else _FAMILIES.get(family)
    if oldest is None:
        rule = f"no rule is known for CUDA {build} on a driver that may be older than it"
        remedy = "Update the driver; what counts is whether torch runs a kernel."
        return "unknown", "unknown_family", rule, remedy
    needed = oldest[windows]
    rule = f"CUDA {build if family < 11 else family} needs driver {needed} or newer"
    if not known and not supported:
        return "unknown", "driver_version_unknown", rule, ""
    too_old = known < version(needed) if known else supported[0] < family
    if too_old:
        remedy = f"Update the NVIDIA driver to {needed} or newer"
        remedy += f", or install a torch build for CUDA {supported[0]}." if supported else "."
        return "error", "driver_too_old", rule, remedy
    if family < 11:
        return "ok", "driver_supports_build", rule, ""
    rule = (
        f"CUDA {family} of any minor version runs on driver {needed} or newer "
        "(except code that the driver must compile from PTX)"
    )
    return "ok", "minor_version_compatibility", rule, ""


def build_and_nvcc(build: str | None, nvcc: str | None) -> Verdict:
    """Judge whether the compiler on this machine can build extensions for a build of torch.

    Args:
        build: The CUDA of the build; `None` for builds without CUDA.
        nvcc: The version of the compiler; `None` when there is none.

    Example:
        >>> [build_and_nvcc("12.1", nvcc).level for nvcc in ("12.1", "12.4", "11.8", None)]
        ['ok', 'warning', 'error', 'ok']
    """

    def verdict(level: Level, code: str, sentence: str, remedy: str = "") -> Verdict:
        return Verdict(
            pair="build and nvcc",
            level=level,
            code=code,
            sentence=sentence,
            rule="nvcc matters only for compiling extensions: its major version must be that of "
            "the build, another minor version is tolerated",
            source=EXTENSION_CHECK,
            remedy=remedy,
        )

    if nvcc is None:
        return verdict("ok", "nvcc_not_found", "nvcc was not found, and running torch needs none")
    if build is None:
        return verdict(
            "ok", "nvcc_not_used", f"nvcc {nvcc} is here, and this build of torch does not use it"
        )
    found = f"torch was built with CUDA {build} and nvcc is {nvcc}"
    if version(nvcc)[:2] == version(build)[:2]:
        return verdict("ok", "same_version", found)
    remedy = (
        f"To compile extensions, install the CUDA toolkit {build} and point CUDA_HOME at it; "
        "to run torch, nothing."
    )
    if version(nvcc)[:1] == version(build)[:1]:
        return verdict("warning", "minor_differs", found, remedy)
    return verdict("error", "major_differs", f"{found}: extensions will not compile", remedy)


def archs_and_gpu(archs: Sequence[str], capability: str | None, name: str) -> Verdict:
    """Judge whether a build of torch has kernels for a GPU.

    Args:
        archs: The architectures of the build.
        capability: The compute capability of the GPU.
        name: What to call the GPU.

    Example:
        >>> archs_and_gpu(["sm_75", "sm_80", "sm_90"], "8.9", "GPU 0").sentence
        'GPU 0 (8.9) runs the code of this torch for sm_80'
    """
    numbers = version(capability)
    known = (numbers[0], numbers[1]) if len(numbers) == 2 else None
    runs = {arch: None if known is None else arch_runs(arch, known) for arch in archs}
    fitting = [arch for arch, fits in runs.items() if fits]
    gpu = f"{name} ({capability or 'capability not known'})"
    level: Level = "error"
    code, remedy = "no_kernels", "Install a build of torch that lists this GPU's architecture."
    sentence = f"{gpu} runs no code of this torch, which has {', '.join(archs) or 'none'}"
    if fitting:
        level, code, remedy = "ok", "has_kernels", ""
        sentence = f"{gpu} runs the code of this torch for {fitting[-1]}"
        if fitting[-1].startswith("compute_"):
            code = "has_ptx"
            sentence += ", which the driver compiles on first use"
    elif not archs or None in runs.values():
        level, code, remedy = "unknown", "unknown_architecture", ""
        sentence = f"{gpu}: no rule is known for {', '.join(archs) or 'a build without a list'}"
    return Verdict(
        pair="build and GPU",
        level=level,
        code=code,
        sentence=sentence,
        rule="sm_XY runs on GPUs of major version X from minor version Y on (not across Jetson "
        "and other chips); a suffix 'a' on exactly that GPU, 'f' on its family; compute_XY on "
        "that GPU and all newer ones",
        source=PROGRAMMING_GUIDE,
        remedy=remedy,
    )
