"""Asking NVML through ctypes: enough for the probe, which must do without any other package."""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from devicekit import driver
from devicekit.driver import Driver, Gpu, cuda_version

__all__ = ["NVML_DRIVER_NOT_LOADED", "NVML_LIBRARY_MISMATCH", "ask_nvml"]

NVML_DRIVER_NOT_LOADED = 9
NVML_LIBRARY_MISMATCH = 18
_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_MOST_GPUS = 1024  # a library that counts more is broken


class _NvmlError(Exception):
    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


def ask_nvml() -> Driver:
    """Ask NVML for the driver and all GPUs of the machine, whatever the environment hides."""
    try:
        nvml = driver.load_library(_LIBRARY)
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
    if count.value > _MOST_GPUS:
        raise _NvmlError(-1, f"{_LIBRARY} counts {count.value} GPUs")
    gpus = tuple(_read_gpu(nvml, index) for index in range(count.value))
    return Driver("ok", version=version, cuda=cuda_version(cuda.value), gpus=gpus)


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
        raise _NvmlError(-1, f"{_LIBRARY} has no {function}") from None
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
