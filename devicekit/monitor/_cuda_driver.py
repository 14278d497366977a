"""A script: print what the CUDA driver says as JSON. Run as a process of its own.

It calls the driver's C interface without creating a context. It never fails: what goes wrong is in
the answer. (`devicekit.probe` asks the driver as well, but for torch, which the monitor and the
report must do without.)
"""

import ctypes
import json
import sys

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_UUID_BYTES = 16


def facts() -> dict[str, object]:
    """Return `cuda_version` (12040 is 12.4) and `uuids` in CUDA's order, or an `error`."""
    try:
        cuda = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return {"error": str(error)}
    found: dict[str, object] = {}
    number = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
        found["cuda_version"] = number.value
    code = cuda.cuInit(0)
    if code == 0:
        code = cuda.cuDeviceGetCount(ctypes.byref(number))
    # 100 is CUDA_ERROR_NO_DEVICE: nothing is visible, which is an answer.
    if code == 100:
        return {**found, "uuids": []}
    if code != 0:
        return {**found, "error": f"the CUDA driver returned error {code}"}
    # The second version of the function gives MIG devices their own UUIDs (CUDA 11.4).
    versioned = hasattr(cuda, "cuDeviceGetUuid_v2")
    get_uuid = cuda.cuDeviceGetUuid_v2 if versioned else cuda.cuDeviceGetUuid
    uuids = []
    for index in range(number.value):
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        code = get_uuid(ctypes.byref(raw), index)
        if code != 0:
            return {**found, "error": f"the CUDA driver returned error {code}"}
        text = bytes(raw).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        uuids.append("GPU-" + "-".join(parts))
    return {**found, "uuids": uuids}


if __name__ == "__main__":
    print(json.dumps(facts()))
