"""What the NVIDIA driver says about this machine, without initialising CUDA here.

Two sources, because neither suffices alone. NVML (`devicekit.driver.nvml`) is quick and safe in the
process itself, but knows nothing of MIG masks, is missing on some boards, and counts GPUs in
another order than CUDA. The driver library is exact, but one call to `cuInit` makes every later
`fork` useless for CUDA, so it is asked in a child process.

No torch is imported.
"""

import ctypes
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from devicekit.children import run_python
from devicekit.driver._child import MARK

__all__ = ["Driver", "Gpu", "ask_driver", "cuda_version", "load_library", "missing_library"]

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_CHILD = Path(__file__).with_name("_child.py")
# `cuInit` alone takes ten seconds on a large machine without persistence mode.
_CHILD_TIMEOUT_S = 60.0
_CUDA_ERROR_NO_DEVICE = 100


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU: its name, UUID and compute capability as far as they are known."""

    name: str = ""
    uuid: str = ""
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Driver:
    """The answer of the driver.

    Attributes:
        state: "ok", "absent" (no driver, or not loaded), "failed", or "unknown" (could not ask).
        words: Unless it is "ok": what was said, in the words of the library that said it.
        version: The version of the driver, such as "535.104.05"; empty if unknown.
        cuda: The newest CUDA version that the driver supports.
        gpus: The GPUs of the machine, or with `masked` those that `CUDA_VISIBLE_DEVICES` leaves.
        masked: Whether `gpus` is what CUDA itself would show, in its order.
        code: The number of NVML's error, 0 if there was none.
    """

    state: Literal["ok", "absent", "failed", "unknown"]
    words: str = ""
    version: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()
    masked: bool = False
    code: int = 0


def load_library(name: str) -> Any:
    """Load a shared library by its name, or raise OSError."""
    return ctypes.CDLL(name)


def missing_library() -> Driver | None:
    """None if the driver library is there, else the answer that it is absent."""
    try:
        load_library(_LIBRARY)  # loading alone initialises nothing
    except OSError as error:
        return Driver("absent", str(error))
    return None


def ask_driver() -> Driver:
    """Ask the driver library, in a child process, what CUDA would show this process."""
    try:
        answer = run_child()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Driver("unknown", f"asking {_LIBRARY} in a child process: {error}")
    driver = Driver("ok", cuda=cuda_version(answer.get("cuda", 0)), masked=True)
    if answer["code"] == _CUDA_ERROR_NO_DEVICE:
        return driver
    if answer["code"] != 0:
        return replace(driver, state="failed", words=answer["words"])
    gpus = tuple(
        Gpu(gpu["name"], gpu["uuid"], (gpu["capability"][0], gpu["capability"][1]))
        for gpu in answer["gpus"]
    )
    return replace(driver, gpus=gpus)


def run_child() -> dict[str, Any]:
    """Start the child process that initialises CUDA, and return what it found.

    Raises:
        OSError: It could not be started.
        subprocess.SubprocessError: It failed or took too long.
        ValueError: It gave no answer.
    """
    child = run_python(["-I", "-S", str(_CHILD), _LIBRARY], timeout_s=_CHILD_TIMEOUT_S)
    child.check_returncode()
    # `cuInit` may print to stdout on some systems.
    lines = [line for line in child.stdout.splitlines() if line.startswith(MARK)]
    if not lines:
        raise ValueError(f"it printed no answer, but {child.stdout[:200]!r}")
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(MARK))
    return answer


def cuda_version(number: int) -> tuple[int, int] | None:
    """The CUDA version from the form in which the driver counts; None for 0, which is none.

    Example:
        >>> cuda_version(12040), cuda_version(9000), cuda_version(0)
        ((12, 4), (9, 0), None)
    """
    return (number // 1000, number % 1000 // 10) if number > 0 else None
