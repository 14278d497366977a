"""What the NVIDIA driver says about this machine, without initialising CUDA here.

Two sources, because neither suffices alone. NVML is quick and safe in the process itself, but knows
nothing of MIG masks, is missing on some boards, and counts GPUs in another order than CUDA. The
driver library is exact, but one call to `cuInit` makes every later `fork` useless for CUDA, so
it is asked in a child process.
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = [
    "NVML_DRIVER_NOT_LOADED",
    "NVML_LIBRARY_MISMATCH",
    "Driver",
    "Gpu",
    "ask_driver",
    "ask_nvml",
    "missing_library",
]

_NVML_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_CUDA_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

NVML_DRIVER_NOT_LOADED = 9
NVML_LIBRARY_MISMATCH = 18
_CHILD_TIMEOUT = 60.0
"""Seconds; `cuInit` alone takes ten on a large machine without persistence mode."""


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


class _NvmlError(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def load_library(name: str) -> Any:
    """Load a shared library by its name, or raise OSError."""
    return ctypes.CDLL(name)


def missing_library() -> Driver | None:
    """None if the driver library is there, else the answer that it is absent."""
    try:
        load_library(_CUDA_LIBRARY)  # loading alone initialises nothing
    except OSError as error:
        return Driver("absent", str(error))
    return None


def ask_nvml() -> Driver:
    """Ask NVML for the driver and all GPUs of the machine, whatever the environment hides."""
    try:
        nvml = load_library(_NVML_LIBRARY)
    except OSError as error:
        return Driver("absent", str(error))
    try:
        _call(nvml, "nvmlInit_v2")
    except _NvmlError as error:
        absent = error.code == NVML_DRIVER_NOT_LOADED
        return Driver("absent" if absent else "failed", str(error), code=error.code)
    try:
        return _read_nvml(nvml)
    except _NvmlError as error:
        return Driver("failed", str(error), code=error.code)
    finally:
        nvml.nvmlShutdown()  # counted by NVML: other users of it in this process keep theirs


def _read_nvml(nvml: Any) -> Driver:
    version = _text(nvml, "nvmlSystemGetDriverVersion")
    cuda = ctypes.c_int(0)
    _call(nvml, "nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(cuda))
    count = ctypes.c_uint(0)
    _call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    gpus = tuple(_read_gpu(nvml, index) for index in range(count.value))
    return Driver("ok", version=version, cuda=_cuda_version(cuda.value), gpus=gpus)


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    try:
        _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        name = _text(nvml, "nvmlDeviceGetName", handle)
        uuid = _text(nvml, "nvmlDeviceGetUUID", handle)
        major, minor = ctypes.c_int(0), ctypes.c_int(0)
        _call(
            nvml,
            "nvmlDeviceGetCudaComputeCapability",
            handle,
            ctypes.byref(major),
            ctypes.byref(minor),
        )
    except _NvmlError:
        return Gpu()  # a lost or foreign GPU must not hide the others; it keeps its place
    return Gpu(name, uuid, (major.value, minor.value))


def _text(nvml: Any, function: str, *arguments: object) -> str:
    buffer = ctypes.create_string_buffer(96)
    _call(nvml, function, *arguments, buffer, ctypes.c_uint(len(buffer)))
    return buffer.value.decode("utf-8", "replace")


def _call(nvml: Any, function: str, *arguments: object) -> None:
    try:
        call: Callable[..., int] = getattr(nvml, function)
    except AttributeError:
        raise _NvmlError(-1, f"{_NVML_LIBRARY} has no {function}") from None
    code = call(*arguments)
    if code != 0:
        raise _NvmlError(code, _nvml_words(nvml, code))


def _nvml_words(nvml: Any, code: int) -> str:
    try:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        words = nvml.nvmlErrorString(code)
    except AttributeError:
        words = None
    return words.decode("utf-8", "replace") if words else f"NVML error {code}"


# Runs in the child: standard library only, no site packages. `cuInit` may print to stdout on some
# systems, so the answer is the last line.
_CHILD = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
def words(code):
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    cuda.cuGetErrorString(code, ctypes.byref(text))
    return f"{(name.value or b'?').decode()} ({code}): {(text.value or b'').decode()}"
def integer(function, *arguments):
    value = ctypes.c_int(0)
    code = getattr(cuda, function)(ctypes.byref(value), *arguments)
    if code: raise SystemExit(print(json.dumps({"code": code, "words": words(code)})))
    return value.value
version = integer("cuDriverGetVersion")
code = cuda.cuInit(0)
if code:
    print(json.dumps({"code": code, "words": words(code), "cuda": version}))
    raise SystemExit
gpus = []
for index in range(integer("cuDeviceGetCount")):
    device = integer("cuDeviceGet", index)
    name = ctypes.create_string_buffer(96)
    cuda.cuDeviceGetName(name, len(name), device)
    gpus.append([name.value.decode("utf-8", "replace"),
                 integer("cuDeviceGetAttribute", 75, device),
                 integer("cuDeviceGetAttribute", 76, device)])
print(json.dumps({"code": 0, "cuda": version, "gpus": gpus}))
"""

_CUDA_ERROR_NO_DEVICE = 100


def ask_driver() -> Driver:
    """Ask the driver library, in a child process, what CUDA would show this process."""
    try:
        answer = run_child()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Driver("unknown", f"asking {_CUDA_LIBRARY} in a child process: {error}")
    driver = Driver("ok", cuda=_cuda_version(answer.get("cuda", 0)), masked=True)
    if answer["code"] == _CUDA_ERROR_NO_DEVICE:
        return driver
    if answer["code"] != 0:
        return replace(driver, state="failed", words=answer["words"])
    gpus = tuple(Gpu(name, "", (major, minor)) for name, major, minor in answer["gpus"])
    return replace(driver, gpus=gpus)


def run_child() -> dict[str, Any]:
    """Start the child process that initialises CUDA, and return what it found.

    Raises:
        OSError: It could not be started.
        subprocess.SubprocessError: It failed or took too long.
        ValueError: It answered something else than JSON.
    """
    # In a frozen or embedded Python this is the application, which would start once more.
    if not os.path.basename(sys.executable or "").lower().startswith("py"):
        raise OSError(f"{sys.executable!r} is not a Python interpreter")
    child = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _CHILD, _CUDA_LIBRARY],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_CHILD_TIMEOUT,
        check=True,
    )
    lines = child.stdout.splitlines()
    answer = json.loads(lines[-1] if lines else "")
    if not isinstance(answer, dict):
        raise ValueError(f"unexpected answer {answer!r}")
    return answer


def _cuda_version(number: int) -> tuple[int, int] | None:
    # The driver writes 12.4 as 12040.
    return (number // 1000, number % 1000 // 10) if number > 0 else None
