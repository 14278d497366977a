"""Which accelerators can be used here, and for each that cannot: the reason.

Asking initialises nothing: no CUDA context is made, and a process forked later can still use CUDA.
"""

import os

import torch

from devicekit import compat
from devicekit.probe import cuda
from devicekit.probe.answer import REASONS, Probe, Reason

__all__ = [
    "MASKS",
    "REASONS",
    "Probe",
    "Reason",
    "accelerator_types",
    "device_name",
    "known_types",
    "probe",
]

_BUILT_IN = ("cuda", "xpu", "mps", "hpu", "mtia")
# Backends that live in a package of their own: type -> the module that registers it.
_EXTENSIONS = {
    "hpu": "habana_frameworks.torch",
    "mlu": "torch_mlu",
    "musa": "torch_musa",
    "npu": "torch_npu",
}
_SIMULATED = "sim"  # the name that `devicekit.testing.simulate` uses unless told otherwise

_XPU_MASKS = ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR")
MASKS = (*cuda.MASKS, *_XPU_MASKS)
"""The environment variables that hide devices."""


def known_types() -> tuple[str, ...]:
    """The types of device that have a name here, usable or not, the CPU last."""
    backend = compat.private_backend()
    names = dict.fromkeys((*_BUILT_IN, *_EXTENSIONS, _SIMULATED))
    if backend is not None:
        names[backend] = None
    return (*names, "meta", "cpu")


def accelerator_types() -> tuple[str, ...]:
    """The types that "auto" tries, the best first.

    A backend that somebody registered comes first, as in `torch.accelerator`: it is there because
    it was asked for. Not so a simulation that has stopped, or one that goes by the name of CUDA.
    """
    backend = compat.private_backend()
    if backend is None or compat.cuda_is_simulated():
        return _BUILT_IN
    if backend not in _EXTENSIONS and probe(backend).reason is not None:
        return _BUILT_IN
    return (backend, *_BUILT_IN)


def probe(type: str) -> Probe:
    """Find out whether devices of this type can be used in this process.

    Args:
        type: A type of device, such as "cuda", "mps" or "cpu".

    Returns:
        How many there are, or the reason why there is none. Nothing that torch raises leaks.

    Example:
        >>> from devicekit.probe import probe
        >>> probe("cpu")
        Probe(type='cpu', count=1, reason=None, sentence='', remedy='')
    """
    if type in ("cpu", "meta"):
        return Probe(type, 1)
    try:
        if type == "cuda":
            return cuda.judge(cuda.ask())
        if type == "mps":
            return _probe_mps()
        return _probe_module(type)
    # Backends raise AssertionError, RuntimeError, ModuleNotFoundError and more: their words are
    # kept, and the caller decides whether not having the device is an error.
    except Exception as error:
        sentence = f"asking for {type!r} failed: {error.__class__.__name__}: {error}"
        remedy = f"check the installation of the driver and of the {type!r} backend of torch"
        return Probe(type, 0, "broken", sentence, remedy)


def device_name(type: str, index: int) -> str:
    """The name that the maker gave a device, found without initialising it; else its type."""
    if type == "cuda":
        return cuda.device_name(index) or type
    module = getattr(torch, type, None)
    get_name = getattr(module, "get_device_name", None)
    is_initialized = getattr(module, "is_initialized", None)
    if get_name is None or (is_initialized is not None and not is_initialized()):
        return type
    return str(get_name(index))


def _probe_mps() -> Probe:
    if torch.backends.mps.is_available():
        return Probe("mps", 1)
    if not torch.backends.mps.is_built():
        return _not_built("mps", "MPS (Apple GPU)", "use torch on a Mac with Apple silicon")
    return Probe(
        "mps",
        0,
        "no_device",
        "MPS is not available: it needs macOS 14 or newer and an Apple GPU",
        "update macOS; a virtual machine may have no access to the GPU",
    )


def _probe_module(type: str) -> Probe:
    """Ask the device module of a backend, `torch.<type>`."""
    if type == compat.private_backend() and compat.cuda_is_simulated():
        return _not_simulated(type)
    module = getattr(torch, type, None)
    is_available = getattr(module, "is_available", None)
    if module is None or is_available is None:
        return _no_module(type)
    count = int(module.device_count()) if is_available() else 0
    if count > 0:
        return Probe(type, count)
    if type == _SIMULATED:
        return _not_simulated(type)
    if not compat.is_compiled(module):
        return _not_built(type, repr(type), f"install a build of torch with {type!r}")
    masks = [name for name in _XPU_MASKS if type == "xpu" and name in os.environ]
    if masks:
        values = ", ".join(f"{name}={os.environ[name]!r}" for name in masks)
        sentence = f"torch.{type} finds no device with {values}"
        return Probe(type, 0, "hidden", sentence, f"unset {masks[0]}")
    return Probe(
        type,
        0,
        "no_device",
        f"the {type!r} backend of torch is there, and finds no device",
        "check that the driver is installed and shows the device",
    )


def _no_module(type: str) -> Probe:
    if type == _SIMULATED:
        return _not_simulated(type)
    extension = _EXTENSIONS.get(type)
    if extension is None:
        return _not_built(type, repr(type), f"install a build of torch with {type!r}")
    package = extension.partition(".")[0]
    return _not_built(
        type, f"{type!r} before {extension} is imported", f"install {package}, `import {extension}`"
    )


def _not_built(type: str, what: str, remedy: str) -> Probe:
    return Probe(
        type, 0, "not_built", f"torch {torch.__version__} has no support for {what}", remedy
    )


def _not_simulated(type: str) -> Probe:
    return Probe(
        type,
        0,
        "no_device",
        f"the simulated accelerator {type!r} is not running",
        "start it with devicekit.testing.simulate()",
    )
