"""The report as text, for the terminal and for pasting into an issue."""

from __future__ import annotations

import getpass
import os
import re
import textwrap
from collections.abc import Iterator

from devicekit.env.data import EnvGpu, Environment, Nvcc
from devicekit.monitor.reasons import UNAVAILABLE
from devicekit.monitor.table import size

__all__ = ["as_markdown", "as_text", "scrub", "wrapped"]

_LABEL = 14
_COLORS = {"ok": "32", "warning": "33", "error": "31", "unknown": "36"}
# Values of these are paths, and paths hold user names.
_PATHS = {"CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "LD_LIBRARY_PATH"}
# A path begins where no word, colon, dot or slash stands before it.
_NAME = r"[^\s\\/:,;'\"()|]+"
_PATH = re.compile(rf"(?<![\w:/.])(?:~|[A-Za-z]:)?(?:[\\/]{_NAME})*[\\/]({_NAME})")
_BUILDS = {"cpu": "CPU-only build", "xpu": "XPU build"}


def as_text(report: Environment, *, width: int = 80, color: bool = False) -> str:
    """Return the report for a terminal of this width."""
    lines = [_fact(label, value, width) for label, value in _facts(report, private=True)]
    lines.append("")
    told: set[str] = set()
    for verdict in report.verdicts:
        mark: str = verdict.level
        if color:
            mark = f"\x1b[{_COLORS[mark]}m{mark}\x1b[0m"
        pad = " " * (9 - len(verdict.level))
        body = f"{verdict.pair}: {verdict.sentence}."
        lines.append(mark + pad + wrapped(body, width, 9).lstrip())
        if verdict.rule not in told:
            lines.append(wrapped(f"rule: {verdict.rule} ({verdict.source})", width, 9))
        told.add(verdict.rule)
        if verdict.remedy:
            lines.append(wrapped(f"fix: {verdict.remedy}", width, 9))
    for problem in report.problems:
        lines.append(wrapped(f"not asked: {problem.probe}: {problem.sentence}", width, 0))
    return "\n".join(lines) + "\n"


def as_markdown(report: Environment) -> str:
    """Return the report for pasting: no paths, no user names, no serial numbers of GPUs."""
    lines = ["| what | value |", "| --- | --- |"]
    lines += [f"| {label} | {_cell(value)} |" for label, value in _facts(report, private=False)]
    lines += ["", "| level | what | finding | rule |", "| --- | --- | --- | --- |"]
    for verdict in report.verdicts:
        cells = (verdict.level, verdict.pair, verdict.sentence, verdict.rule)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    lines += [""] if report.problems else []
    lines += [f"- not asked: {_cell(p.probe)}: {_cell(p.sentence)}" for p in report.problems]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return scrub(text).replace("|", "\\|").replace("\n", " ")


def scrub(text: str) -> str:
    """Take paths, the user's name and the UUIDs of GPUs out of a text.

    Example:
        >>> scrub("ImportError: /home/ada/lib/libtorch.so: undefined symbol")
        'ImportError: .../libtorch.so: undefined symbol'
        >>> scrub("see https://pytorch.org/get-started/locally")
        'see https://pytorch.org/get-started/locally'
    """
    home = os.path.expanduser("~")  # itself where there is no home, as in some containers
    for private in {home, home.replace("\\", "/")}:
        if len(private) > 1:
            text = text.replace(private, "~")
    text = _PATH.sub(_shortened, text)
    text = re.sub(r"\b(GPU|MIG)-[0-9a-fA-F][0-9a-fA-F-]{7,}", r"\1-...", text)
    user = _user()
    return re.sub(rf"\b{re.escape(user)}\b", "user", text) if user else text


def _shortened(path: re.Match[str]) -> str:
    # One slash alone, as in "and/or" or "/1", is no path.
    return path.group() if len(re.findall(r"[\\/]", path.group())) < 2 else f".../{path[1]}"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number that has no name: then there is none to hide.
        return ""
    # Such short or common names are words of the report too.
    return name if len(name) > 3 and name != "root" else ""


def wrapped(text: str, width: int, indent: int) -> str:
    """Break a text into lines of this width, indented; what is pasted elsewhere stays whole."""
    space = " " * indent
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fact(label: str, value: str, width: int) -> str:
    head = label.ljust(_LABEL)
    return head + wrapped(value, width, _LABEL)[_LABEL:]


def _facts(report: Environment, *, private: bool) -> Iterator[tuple[str, str]]:
    """Yield label and value of each fact; the private form has paths and UUIDs."""
    yield "torch", _torch(report)
    if report.build is not None:
        yield "CUDA build", report.build_cuda or "none"
    yield "driver", report.driver or f"not found: {_why(report, 'driver')}"
    if report.driver:
        supported = report.driver_max_cuda or "not known"
        yield "driver CUDA", f"{supported} (the newest it supports; nvidia-smi's CUDA Version)"
    if not report.nvccs:
        yield "nvcc", "not found"
    for nvcc in report.nvccs:
        yield "nvcc", _nvcc(nvcc, private)
    for label, value in (("cuDNN", report.cudnn), ("NCCL", report.nccl)):
        if value:
            yield label, value
    if report.build_archs:
        yield "kernels for", " ".join(report.build_archs)
    if not report.gpus:
        seen = {True: "one is on the bus, without a driver", False: "none on the bus"}
        yield "GPUs", "none" if report.gpu_in_pci is None else seen[report.gpu_in_pci]
    for gpu in report.gpus:
        yield "GPU", _gpu(gpu)
    for name, value in report.variables.items():
        yield "variable", f"{name}={value if private or name not in _PATHS else '(a path)'}"
    packages = [f"{name} {version}" for name, version in report.packages.items() if name != "torch"]
    yield "packages", ", ".join(packages) or "none of those that matter"
    yield "Python", report.python
    yield "system", report.system


def _torch(report: Environment) -> str:
    if report.torch_error and report.torch is None:
        return "not installed"
    if report.torch_error:
        return f"{report.torch}, which does not import: {report.torch_error}"
    cuda, hip = f"CUDA {report.build_cuda} build", f"ROCm {report.build_hip} build"
    kind = {"cuda": cuda, "rocm": hip, **_BUILDS}[report.build or "cpu"]
    return f"{report.torch} ({kind})"


def _why(report: Environment, key: str) -> str:
    reason = report.reasons.get(key, "")
    return UNAVAILABLE[reason][0] if reason in UNAVAILABLE else reason


def _nvcc(nvcc: Nvcc, private: bool) -> str:
    version = nvcc.release or f"of unknown version ({nvcc.reasons.get('version')})"
    where = f"{nvcc.path}, found by " if private else "found by "
    found_by = nvcc.found_by if private or "/" not in nvcc.found_by else "its usual folder"
    used = ", the one torch would use for extensions" if nvcc.used else ""
    return f"{version} ({where}{found_by}{used})"


def _gpu(gpu: EnvGpu) -> str:
    name = gpu.name or f"name not known ({gpu.reasons.get('name')})"
    places = []
    if gpu.cuda_index is not None:
        places.append(f"cuda:{gpu.cuda_index}")
    if gpu.nvml_index is not None:
        places.append(f"NVML {gpu.nvml_index}")
    capability = f"capability {gpu.compute_capability}, " if gpu.compute_capability else ""
    kernel = {None: "hidden from torch or not tried", "ok": "a kernel ran"}
    tried = kernel.get(gpu.kernel, f"no kernel ran: {gpu.kernel}")
    return f"{name} ({', '.join(places)}): {capability}{size(gpu.memory_total_bytes)}, {tried}"
