"""The typed data of a report on the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from devicekit.records import Record

__all__ = ["SCHEMA_VERSION", "EnvGpu", "Environment", "Level", "Nvcc", "Problem", "Verdict"]

SCHEMA_VERSION = 1
Level = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Nvcc(Record):
    """A CUDA compiler on this machine.

    Attributes:
        path: Its full path.
        version: The CUDA toolkit it belongs to, such as "13.0".
        release: The same in full, such as "13.0.88".
        found_by: "CUDA_HOME", "CUDA_PATH", "PATH", or the folder it was looked for in.
        used: Whether torch takes this one to compile extensions.
    """

    path: str
    version: str | None
    release: str | None
    found_by: str
    used: bool


@dataclass(frozen=True, kw_only=True)
class EnvGpu(Record):
    """A GPU as far as running torch on it goes.

    Attributes:
        nvml_index: Its number in NVML and nvidia-smi.
        cuda_index: Its number in torch.
        uuid: NVML's UUID.
        name: The product name.
        compute_capability: Such as "9.0".
        memory_total_bytes: Its memory.
        kernel: "ok" when torch ran a kernel on it just now, else what it raised.
    """

    nvml_index: int | None
    cuda_index: int | None
    uuid: str | None
    name: str | None
    compute_capability: str | None
    memory_total_bytes: int | None
    kernel: str | None


@dataclass(frozen=True, kw_only=True)
class Verdict(Record):
    """Whether two things fit, and by which rule.

    Attributes:
        pair: What was compared, such as "build and driver".
        level: "ok", "warning", "error", or "unknown" where no rule covers the case.
        code: The case, for programs.
        sentence: What was found.
        rule: The rule it was judged by.
        source: Where the rule comes from.
        remedy: What to do; empty where there is nothing to do.
    """

    pair: str
    level: Level
    code: str
    sentence: str
    rule: str
    source: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Problem(Record):
    """A question that could not be asked.

    Attributes:
        probe: The question.
        sentence: What went wrong.
    """

    probe: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Environment(Record):
    """What is installed for computing on GPUs, and whether it fits together.

    Three versions carry the name CUDA. `build_cuda` is the CUDA that torch was built with and
    brings along. `driver_max_cuda` is the newest CUDA that the driver can run, which nvidia-smi
    prints as "CUDA Version". `nvcc` is the toolkit on this machine, which only matters for
    compiling extensions.

    Attributes:
        schema_version: The version of the form of `to_dict()`.
        python: The version of Python.
        system: The operating system.
        torch: The version of torch.
        torch_error: What importing torch raised.
        build: "cpu", "cuda", "rocm" or "xpu".
        build_cuda: Such as "12.4".
        build_hip: The ROCm version of the build.
        build_archs: The architectures that the build has kernels for, such as "sm_90".
        cudnn: The version of cuDNN that torch loads.
        nccl: The version of NCCL that torch was built with.
        cuda_available: What `torch.cuda.is_available()` returned.
        driver: The version of the NVIDIA driver, such as "550.54.14".
        driver_max_cuda: Such as "12.4".
        nvcc: The version of the compiler that torch would use.
        nvccs: All compilers found.
        cuda_home: The toolkit's folder that torch would use.
        gpu_in_pci: Whether an NVIDIA GPU is on the bus, with or without a driver.
        gpus: The GPUs.
        variables: The environment variables that matter and are set.
        packages: The versions of the packages that matter and are installed.
        verdicts: What fits and what does not.
        problems: What could not be asked.
    """

    schema_version: int = SCHEMA_VERSION
    python: str = ""
    system: str = ""
    torch: str | None = None
    torch_error: str | None = None
    build: Literal["cpu", "cuda", "rocm", "xpu"] | None = None
    build_cuda: str | None = None
    build_hip: str | None = None
    build_archs: tuple[str, ...] = ()
    cudnn: str | None = None
    nccl: str | None = None
    cuda_available: bool | None = None
    driver: str | None = None
    driver_max_cuda: str | None = None
    nvcc: str | None = None
    nvccs: tuple[Nvcc, ...] = ()
    cuda_home: str | None = None
    gpu_in_pci: bool | None = None
    gpus: tuple[EnvGpu, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    verdicts: tuple[Verdict, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def checked(self) -> bool:
        """Whether torch could be asked, so that the verdicts are complete."""
        return self.build is not None

    def worst(self) -> Level:
        """Return the worst level among the verdicts; "unknown" is no worse than "ok"."""
        levels = {verdict.level for verdict in self.verdicts}
        return "error" if "error" in levels else "warning" if "warning" in levels else "ok"

    def __str__(self) -> str:
        from devicekit.env.text import as_text

        return as_text(self)
