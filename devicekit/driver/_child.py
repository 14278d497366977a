"""A program of its own: print what NVIDIA's driver library says, as JSON.

In a process of its own, because one call to `cuInit` makes every later `fork` useless for CUDA.
Standard library only: it runs without site packages, and creates no context.
"""

import ctypes
import json
import sys
from typing import Any

MARK = "devicekit-driver:"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class _CudaError(Exception):
    pass


def ask(cuda: Any) -> dict[str, object]:
    """Return the answer: `code`, `words` if it is not 0, `cuda` and `gpus` as far as known.

    Args:
        cuda: The driver library.
    """
    found: dict[str, object] = {"code": 0}
    try:
        found["cuda"] = _integer(cuda, "cuDriverGetVersion")
        _call(cuda, "cuInit", 0)
        found["gpus"] = [_gpu(cuda, index) for index in range(_integer(cuda, "cuDeviceGetCount"))]
    except _CudaError as error:
        code = error.args[0]
        found |= {"code": code, "words": _words(cuda, code)}
    return found


def _gpu(cuda: Any, index: int) -> dict[str, object]:
    device = _integer(cuda, "cuDeviceGet", index)
    name = ctypes.create_string_buffer(96)
    _call(cuda, "cuDeviceGetName", name, len(name), device)
    capability = [_integer(cuda, "cuDeviceGetAttribute", what, device) for what in (_MAJOR, _MINOR)]
    return {
        "name": name.value.decode("utf-8", "replace"),
        "uuid": _uuid(cuda, device),
        "capability": capability,
    }


def _uuid(cuda: Any, device: int) -> str:
    # The second version of the function gives MIG devices their own UUIDs (CUDA 11.4).
    first = getattr(cuda, "cuDeviceGetUuid", None)
    function = getattr(cuda, "cuDeviceGetUuid_v2", first)
    raw = (ctypes.c_ubyte * 16)()
    if function is None or function(ctypes.byref(raw), device) != 0:
        return ""  # it can be used all the same
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _integer(cuda: Any, function: str, *arguments: object) -> int:
    value = ctypes.c_int(0)
    _call(cuda, function, ctypes.byref(value), *arguments)
    return value.value


def _call(cuda: Any, function: str, *arguments: object) -> None:
    code = getattr(cuda, function)(*arguments)
    if code != 0:
        raise _CudaError(code)


def _words(cuda: Any, code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    cuda.cuGetErrorString(code, ctypes.byref(text))
    return f"{(name.value or b'?').decode()} ({code}): {(text.value or b'').decode()}"


if __name__ == "__main__":
    print(MARK + json.dumps(ask(ctypes.CDLL(sys.argv[1]))))
