"""Which accelerators can be used here, and for each that cannot: the reason.

Asking initialises nothing: no CUDA context is made, and a process forked later can still use CUDA.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import torch

from devicekit import compat
from devicekit.driver import Driver, Gpu, ask_driver, ask_nvml

__all__ = [
    "REASONS",
    "CudaFacts",
    "Probe",
    "accelerator_types",
    "cuda_facts",
    "device_name",
    "judge_cuda",
    "known_types",
    "probe",
    "supports",
]

Reason = Literal[
    "not_built",
    "no_driver",
    "driver_too_old",
    "hidden",
    "no_device",
    "unsupported_arch",
    "broken",
]

REASONS: dict[str, str] = {
    "not_built": "this build of torch has no support for the device",
    "no_driver": "the driver of the device is not installed or not loaded",
    "driver_too_old": "the driver is older than this build of torch needs",
    "hidden": "an environment variable hides every device",
    "no_device": "the machine has no such device",
    "unsupported_arch": "this build of torch has no kernels for the device",
    "broken": "asking for the device failed",
}
"""What each code of `Probe.reason` means."""

# Backends that live in a package of their own: type -> the module that registers it.
_EXTENSIONS = {
    "hpu": "habana_frameworks.torch",
    "mlu": "torch_mlu",
    "musa": "torch_musa",
    "npu": "torch_npu",
    "xla": "torch_xla",
}
_SIMULATED = "sim"
_BUILT_IN = ("cuda", "xpu", "mps", "hpu", "mtia")
_MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"),
}
MASKS = tuple(name for names in _MASKS.values() for name in names)
"""The environment variables that hide devices."""


@dataclass(frozen=True)
class Probe:
    """The answer for one type of device.

    Attributes:
        type: The type, such as "cuda".
        count: How many devices of it can be used; 0 if none can.
        reason: None if it can be used, else one of `REASONS`.
        sentence: Why it cannot be used, as one sentence.
        remedy: What to do about it, as one sentence.
    """

    type: str
    count: int
    reason: Reason | None = None
    sentence: str = ""
    remedy: str = ""


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
    it was asked for. One that wears the name of CUDA (a simulation) is CUDA.
    """
    backend = compat.private_backend()
    if backend is None or compat.is_disguised_as_cuda(backend):
        return _BUILT_IN
    if backend not in _EXTENSIONS and probe(backend).reason is not None:
        return _BUILT_IN  # a simulation that was stopped
    return (backend, *_BUILT_IN)


def probe(type: str) -> Probe:
    """Find out whether devices of this type can be used in this process.

    Args:
        type: A type of device, such as "cuda", "mps" or "cpu".

    Returns:
        How many there are, or the reason why there is none; nothing that torch raises leaks.

    Example:
        >>> from devicekit.probe import probe
        >>> probe("cpu")
        Probe(type='cpu', count=1, reason=None, sentence='', remedy='')
    """
    if type in ("cpu", "meta"):
        return Probe(type, 1)
    if type == "cuda":
        return judge_cuda(cuda_facts())
    if type == "mps":
        return _probe_mps()
    return _probe_module(type)


# --- CUDA: first the facts, from one function that tests can replace; then the judgement.


@dataclass(frozen=True)
class CudaFacts:
    """All that the judgement about CUDA rests on.

    Attributes:
        torch_version: `torch.__version__`.
        build: The CUDA version that torch was built for, or None.
        hip: The ROCm version that torch was built for, or None.
        count: What torch itself says, where asking it harms nothing; else None.
        archs: The architectures that torch has kernels for, such as "sm_90".
        masks: The environment variables that hide devices, and their values.
        driver: What the driver says; None if it was not asked.
        visible: The positions in `driver.gpus` that are not hidden.
    """

    torch_version: str
    build: str | None = None
    hip: str | None = None
    count: int | None = None
    archs: tuple[str, ...] = ()
    masks: tuple[tuple[str, str], ...] = ()
    driver: Driver | None = None
    visible: tuple[int, ...] = ()


def cuda_facts() -> CudaFacts:
    """Ask torch, NVML and, where these two cannot know, the driver in a child process."""
    build, hip = torch.version.cuda, torch.version.hip
    count = _ask_torch() if _torch_answers_freely() else None
    masks = tuple((name, os.environ[name]) for name in _MASKS["cuda"] if name in os.environ)
    facts = CudaFacts(torch.__version__, build, hip, count, masks=masks)
    if build is None or hip is not None:
        return facts
    archs = compat.cuda_arch_list()
    if count and compat.is_replaced(torch.cuda.is_available, torch.cuda):
        return facts  # a simulation: no driver knows of it
    driver, visible = _ask_the_driver(archs)
    return CudaFacts(torch.__version__, build, hip, count, archs, masks, driver, visible)


def _torch_answers_freely() -> bool:
    """Whether `torch.cuda.is_available()` can be called without any effect on this process."""
    return (
        not torch.backends.cuda.is_built()
        or torch.version.hip is not None  # no other way to ask
        or not hasattr(os, "fork")
        or torch.cuda.is_initialized()
        or compat.is_replaced(torch.cuda.is_available, torch.cuda)
        or compat.is_replaced(torch.cuda.device_count, torch.cuda)
    )


def _ask_torch() -> int:
    # Available and counted: a build may claim to be available with no device to show.
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def _ask_the_driver(archs: tuple[str, ...]) -> tuple[Driver, tuple[int, ...]]:
    driver = ask_nvml()
    visible: tuple[int, ...] | None = None
    if driver.state == "ok":
        visible = _visible(driver.gpus)
        if visible is not None and _order_matters_not(driver.gpus, visible, archs):
            return driver, visible
    if driver.mismatch:
        return driver, ()
    asked = ask_driver()
    if asked.state == "ok" and (asked.gpus or driver.state != "ok"):
        return asked, tuple(range(len(asked.gpus)))
    if driver.state == "ok":
        return (driver, ()) if asked.state == "ok" else (asked, ())
    return (driver, ()) if asked.state == "absent" else (asked, ())


def _visible(gpus: tuple[Gpu, ...]) -> tuple[int, ...] | None:
    """The positions of the GPUs that the environment leaves; None if NVML cannot know."""
    masks = compat.visible_devices()
    if not masks:
        return ()
    if isinstance(masks[0], str):
        names = [str(mask) for mask in masks]
        if names[0].startswith("MIG-"):
            return None
        return tuple(compat.ordinals_of_uuids(names, [gpu.uuid for gpu in gpus]))
    ordinals = []
    for mask in masks:
        if int(mask) >= len(gpus):
            break  # as CUDA does: what follows an index that does not exist is hidden too
        ordinals.append(int(mask))
    return tuple(ordinals)


def _order_matters_not(
    gpus: tuple[Gpu, ...], visible: tuple[int, ...], archs: tuple[str, ...]
) -> bool:
    # CUDA counts the fastest GPU first, NVML by the slot: which is which only matters when some
    # of the GPUs can run this build and others cannot.
    return len({supports(archs, gpu.capability) for gpu in gpus}) <= 1 or not visible


def judge_cuda(facts: CudaFacts) -> Probe:
    """Turn facts into an answer: the first cause that explains them."""
    torch_version = f"torch {facts.torch_version}"
    masks = ", ".join(f"{name}={value!r}" for name, value in facts.masks)
    driver = facts.driver
    if facts.count and (driver is None or not driver.gpus):
        return Probe("cuda", facts.count)
    if facts.build is None and facts.hip is None:
        return Probe(
            "cuda",
            0,
            "not_built",
            f"{torch_version} is a CPU-only build (Torch not compiled with CUDA enabled)",
            "install a CUDA build of torch: choose one at https://pytorch.org/get-started/locally",
        )
    if driver is None:
        return _judge_without_driver(facts, masks)
    if driver.state == "absent":
        return Probe(
            "cuda",
            0,
            "no_driver",
            f"found no NVIDIA driver on this system ({driver.words})",
            "install the NVIDIA driver, or in a container start it with access to the GPUs "
            "(docker run --gpus all)",
        )
    if driver.state == "failed":
        return _broken(driver)
    needs = _version(facts.build)
    if driver.cuda and needs and driver.cuda[0] < needs[0]:
        found = f"{driver.version} " if driver.version else ""
        return Probe(
            "cuda",
            0,
            "driver_too_old",
            f"the NVIDIA driver {found}supports CUDA up to {driver.cuda[0]}.{driver.cuda[1]}, and "
            f"{torch_version} was built for CUDA {facts.build}",
            f"update the NVIDIA driver, or install a build of torch for CUDA {driver.cuda[0]}",
        )
    if not driver.gpus and not (driver.masked and facts.masks):
        return Probe(
            "cuda",
            0,
            "no_device",
            "the NVIDIA driver finds no GPU in this machine",
            "check `nvidia-smi` and whether the container or job was given a GPU",
        )
    if not facts.visible:
        has = f" of the {len(driver.gpus)} in this machine" if driver.gpus else ""
        return Probe(
            "cuda",
            0,
            "hidden",
            f"{masks or 'the environment'} hides every GPU{has}",
            f"unset {facts.masks[0][0] if facts.masks else 'CUDA_VISIBLE_DEVICES'}, or set it to "
            "the GPUs to use before CUDA is initialised",
        )
    gpus = [driver.gpus[index] for index in facts.visible]
    if not any(supports(facts.archs, gpu.capability) for gpu in gpus):
        gpu = gpus[0]
        major, minor = gpu.capability or (0, 0)
        return Probe(
            "cuda",
            0,
            "unsupported_arch",
            f"{torch_version} has no kernels for {gpu.name or 'this GPU'} (sm_{major}{minor}), "
            f"only for {' '.join(facts.archs)}",
            "install a build of torch that supports this GPU "
            "(https://pytorch.org/get-started/locally)",
        )
    if facts.count == 0:
        return Probe(
            "cuda",
            0,
            "broken",
            f"torch.cuda.is_available() is False or counts no device, although the driver shows "
            f"{len(gpus)}",
            "run `python -c 'import torch; torch.cuda.init()'` to see the error of CUDA itself",
        )
    return Probe("cuda", facts.count or len(gpus))


def _judge_without_driver(facts: CudaFacts, masks: str) -> Probe:
    kind = "ROCm" if facts.hip is not None else "CUDA"
    if masks:
        return Probe(
            "cuda",
            0,
            "hidden",
            f"torch {facts.torch_version} finds no {kind} device with {masks}",
            f"unset {facts.masks[0][0]}, or set it to the devices to use",
        )
    return Probe(
        "cuda",
        0,
        "no_device",
        f"torch {facts.torch_version} finds no {kind} device",
        "check that the driver is installed and shows the device",
    )


def _broken(driver: Driver) -> Probe:
    remedy = (
        "reboot, or reload the kernel module: the driver was updated while the old one is loaded"
        if driver.mismatch
        else "check `nvidia-smi`; a reboot or a new installation of the driver often helps"
    )
    return Probe("cuda", 0, "broken", f"the NVIDIA driver fails: {driver.words}", remedy)


def _version(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = text.split(".")
    return (int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0)


# Boards with an integrated GPU have rules of their own: never claim that one is unsupported.
_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (11, 0)}


def supports(archs: Iterable[str], capability: tuple[int, int] | None) -> bool:
    """Whether kernels built for `archs` run on a GPU of this compute capability.

    Machine code (`sm_80`) runs on the same major version from its minor version on, code marked
    with a letter (`sm_90a`) on exactly that GPU, or (`sm_100f`) on its family. PTX (`compute_80`)
    is compiled for anything newer. The rules are those of NVIDIA's CUDA C++ programming guide,
    "Compute Capabilities".

    Args:
        archs: What `torch.cuda.get_arch_list()` returns; empty means unknown.
        capability: Major and minor version; None means unknown. Unknown counts as supported.

    Example:
        >>> supports(["sm_80", "sm_90"], (8, 6)), supports(["sm_80", "sm_90"], (7, 5))
        (True, False)
    """
    archs = list(archs)
    if not archs or capability is None or capability in _INTEGRATED:
        return True
    return any(_runs(arch, capability) for arch in archs)


def _runs(arch: str, capability: tuple[int, int]) -> bool:
    kind, _, number = arch.partition("_")
    digits = number.rstrip("af")
    if kind not in ("sm", "compute") or not digits.isdecimal() or len(digits) < 2:
        return True  # a form this function does not know, such as gfx90a: claim nothing
    built = (int(digits[:-1]), int(digits[-1]))
    if number.endswith("a"):
        return built == capability
    if kind == "compute" and number == digits:
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def device_name(type: str, index: int) -> str:
    """The name that the maker gave the device, without initialising it; else the type."""
    if type == "cuda" and not _torch_answers_freely():
        facts = cuda_facts()
        names = [facts.driver.gpus[i].name for i in facts.visible] if facts.driver else []
        return (names[index] if index < len(names) else "") or type
    module = getattr(torch, type, None)
    get = getattr(module, "get_device_name", None)
    if get is None or type in ("cpu", "meta"):
        return type
    return str(get(index))


# --- The other backends.


def _probe_mps() -> Probe:
    if torch.backends.mps.is_available():
        return Probe("mps", 1)
    if not torch.backends.mps.is_built():
        return Probe(
            "mps",
            0,
            "not_built",
            f"torch {torch.__version__} was not built with MPS (Apple GPU) support",
            "use a Mac with Apple silicon and its own build of torch",
        )
    return Probe(
        "mps",
        0,
        "no_device",
        "MPS is not available: it needs macOS 14 or newer and an Apple GPU",
        "update macOS; a virtual machine may have no GPU",
    )


def _probe_module(type: str) -> Probe:
    """Ask the device module of a backend, `torch.<type>`."""
    module = getattr(torch, type, None)
    if not isinstance(module, ModuleType) and not hasattr(module, "is_available"):
        return _no_module(type)
    try:
        count = int(module.device_count()) if module.is_available() else 0  # type: ignore[union-attr]
    # Backends raise AssertionError, RuntimeError, ModuleNotFoundError and more; the words are kept.
    except Exception as error:
        return Probe(
            type,
            0,
            "broken",
            f"asking torch.{type} failed: {error.__class__.__name__}: {error}",
            f"check the installation of the {type!r} backend",
        )
    if count > 0:
        return Probe(type, count)
    return _none_of(type)


def _no_module(type: str) -> Probe:
    if type == _SIMULATED:
        return _not_simulated(type)
    extension = _EXTENSIONS.get(type)
    sentence = f"torch {torch.__version__} has no {type!r} backend"
    if extension is None:
        return Probe(type, 0, "not_built", sentence, f"install a build of torch with {type!r}")
    return Probe(
        type,
        0,
        "not_built",
        f"{sentence} until {extension} is imported",
        f"install {extension.partition('.')[0]} and `import {extension}` first",
    )


def _none_of(type: str) -> Probe:
    if type == _SIMULATED:
        return _not_simulated(type)
    built = getattr(getattr(torch, type), "_is_compiled", None)
    if built is not None and not built():
        return Probe(
            type,
            0,
            "not_built",
            f"torch {torch.__version__} was not built with {type!r} support",
            f"install a build of torch with {type!r}",
        )
    masks = [f"{n}={os.environ[n]!r}" for n in _MASKS.get(type, ()) if n in os.environ]
    if masks:
        sentence = f"torch.{type} finds no device with {', '.join(masks)}"
        return Probe(type, 0, "hidden", sentence, f"unset {masks[0].partition('=')[0]}")
    return Probe(
        type,
        0,
        "no_device",
        f"torch.{type} is there but not available: it finds no device",
        "check that the driver is installed and shows the device",
    )


def _not_simulated(type: str) -> Probe:
    return Probe(
        type,
        0,
        "no_device",
        f"the simulated accelerator {type!r} is not running",
        "start it: devicekit.testing.simulate()",
    )
