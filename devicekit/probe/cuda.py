"""Whether CUDA can be used here: first the facts, then the judgement.

`ask` is the one place where torch, NVML and the driver are asked; tests put other facts there.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import ModuleType

import torch

from devicekit import compat
from devicekit.archs import INTEGRATED, arch_runs
from devicekit.driver import Driver, Gpu, ask_driver, missing_library
from devicekit.driver.nvml import NVML_DRIVER_NOT_LOADED, NVML_LIBRARY_MISMATCH, ask_nvml
from devicekit.errors import warn_once
from devicekit.probe.answer import Probe, Reason

__all__ = ["MASKS", "Facts", "ask", "device_name", "forget", "judge", "supports"]

MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The environment variables that hide devices."""

_DOWNLOAD = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True)
class Facts:
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


def ask() -> Facts:
    """Ask torch, NVML and, where these two cannot know, the driver in a child process."""
    if _simulation() is not None:
        return Facts(torch.__version__, count=_ask_torch())
    build, hip = torch.version.cuda, torch.version.hip
    count = _ask_torch() if _torch_answers_freely() else None
    masks = tuple((name, os.environ[name]) for name in MASKS if name in os.environ)
    facts = Facts(torch.__version__, build, hip, count, masks=masks)
    if build is None or hip is not None:
        return facts
    if count and _is_mocked():
        return facts  # no driver knows of such a GPU
    if count and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        _warn_if_mask_changed()
        driver, visible = _ask_initialized(count)
    else:
        driver, visible = _ask_driver(compat.cuda_arch_list())
    return replace(facts, archs=compat.cuda_arch_list(), driver=driver, visible=visible)


def _torch_answers_freely() -> bool:
    """Whether `torch.cuda.is_available()` can be called without any effect on this process."""
    return (
        not torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        or torch.version.hip is not None  # there is no other way to ask
        or not hasattr(os, "fork")
        or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        or _is_mocked()
    )


def _is_mocked() -> bool:
    cuda = torch.cuda
    return any(compat.is_replaced(f, cuda) for f in (cuda.is_available, cuda.device_count))


def _simulation() -> ModuleType | None:
    """The device module of the simulation that goes by the name of CUDA, or None."""
    backend = compat.private_backend() if compat.cuda_is_simulated() else None
    return None if backend is None else getattr(torch, backend)


def _ask_torch() -> int:
    # A simulation keeps the rule that asking `torch.cuda` spoils a later fork: ask it itself.
    simulation = None if _is_mocked() else _simulation()
    module = torch.cuda if simulation is None else simulation
    # Available and counted: a build may claim to be available with no device to show.
    return int(module.device_count()) if module.is_available() else 0


def _ask_initialized(count: int) -> tuple[Driver, tuple[int, ...]]:
    gpus = tuple(
        Gpu(torch.cuda.get_device_name(i), "", torch.cuda.get_device_capability(i))
        for i in range(count)
    )
    return Driver("ok", gpus=gpus, masked=True), tuple(range(count))


def _ask_driver(archs: tuple[str, ...]) -> tuple[Driver, tuple[int, ...]]:
    missing = missing_library()
    if missing is not None:
        return missing, ()
    nvml = ask_nvml()
    visible = None
    if nvml.state == "ok":
        visible = _visible(nvml.gpus)
        if visible is not None and not _order_matters(nvml.gpus, archs):
            return nvml, visible
    if nvml.code in (NVML_DRIVER_NOT_LOADED, NVML_LIBRARY_MISMATCH):
        return nvml, ()  # nothing else would know more
    exact = _ask_exactly()
    if exact.state == "unknown":
        if nvml.gpus:  # hope for the best: whoever is wrong learns it from the first use
            return nvml, (0,) if visible is None else visible
        return replace(exact, state="failed"), ()
    if exact.state == "ok" and not exact.gpus and nvml.gpus:
        return nvml, ()  # they are there, and all hidden
    return exact, tuple(range(len(exact.gpus)))


_exact: dict[tuple[str | None, ...], Driver] = {}


def _ask_exactly() -> Driver:
    """Ask the driver in a child process, once for each set of variables that it obeys."""
    key = tuple(os.environ.get(name) for name in (*MASKS, "CUDA_DEVICE_ORDER"))
    if key not in _exact:
        answer = ask_driver()
        if answer.state != "ok":
            return answer  # not kept: it may be mended
        _exact[key] = answer
    return _exact[key]


def forget() -> None:
    """Forget what the driver said."""
    _exact.clear()


def _visible(gpus: tuple[Gpu, ...]) -> tuple[int, ...] | None:
    """The positions of the GPUs that the environment leaves; None if NVML cannot know."""
    try:
        masks = compat.visible_devices()
    except ValueError:
        return None  # a text that torch cannot read, such as "-"
    if masks and str(masks[0]).startswith("MIG-"):
        return None
    names = [mask for mask in masks if isinstance(mask, str)]
    if names:
        return tuple(compat.ordinals_of_uuids(names, [gpu.uuid for gpu in gpus]))
    ordinals = []
    for mask in masks:
        if int(mask) >= len(gpus):
            break  # as CUDA does: what follows an index that does not exist is hidden too
        ordinals.append(int(mask))
    return tuple(ordinals)


def _order_matters(gpus: tuple[Gpu, ...], archs: tuple[str, ...]) -> bool:
    # CUDA counts the fastest GPU first, NVML by the slot. Which is which only matters when some of
    # the GPUs can run this build and others cannot.
    return len({supports(archs, gpu.capability) for gpu in gpus}) > 1


def _mask() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


_mask_at_start: list[str | None] = []

if torch.version.cuda is not None:
    compat.when_cuda_starts(lambda: _mask_at_start.append(_mask()))


def _warn_if_mask_changed() -> None:
    now = _mask()
    if not _mask_at_start or now == _mask_at_start[0]:
        return
    shown = ["unset" if mask is None else repr(mask) for mask in (_mask_at_start[0], now)]
    warn_once(
        f"CUDA_VISIBLE_DEVICES changed from {shown[0]} to {shown[1]} after CUDA was initialised; "
        "CUDA ignores it: set it before the first use of CUDA"
    )


def judge(facts: Facts) -> Probe:
    """Turn facts into an answer: the first cause that explains them."""
    if facts.count:
        return _judge_gpus(facts)  # torch counts them: the driver is there and new enough
    torch_version = f"torch {facts.torch_version}"
    if facts.build is None and facts.hip is None:
        return _unusable(
            "not_built",
            f"{torch_version} is a CPU-only build (Torch not compiled with CUDA enabled)",
            f"install a CUDA build of torch, see {_DOWNLOAD}",
        )
    driver = facts.driver
    if driver is None:
        return _judge_by_torch_alone(facts)
    if driver.state == "absent":
        return _unusable(
            "no_driver",
            f"found no NVIDIA driver on this system ({driver.words})",
            "install the NVIDIA driver; a container must be started with access to the GPUs "
            "(docker run --gpus all)",
        )
    if driver.state == "failed":
        remedy = "check `nvidia-smi`; restarting the machine or installing the driver anew may help"
        if driver.code == NVML_LIBRARY_MISMATCH:
            remedy = "restart the machine: the driver was updated while the old one was loaded"
        return _unusable("broken", f"the NVIDIA driver fails: {driver.words}", remedy)
    if driver.cuda is not None and driver.cuda[0] < _major(facts.build):
        number = f" {driver.version}" if driver.version else ""
        return _unusable(
            "driver_too_old",
            f"the NVIDIA driver{number} is too old: it supports CUDA {driver.cuda[0]}."
            f"{driver.cuda[1]}, and {torch_version} was built for CUDA {facts.build}",
            f"update the driver, or install a build of torch for CUDA {driver.cuda[0]}, "
            f"see {_DOWNLOAD}",
        )
    if not driver.gpus and not (driver.masked and facts.masks):
        return _unusable(
            "no_device",
            "the NVIDIA driver finds no GPU in this machine",
            "check `nvidia-smi`, and whether the container or the job was given a GPU",
        )
    if not facts.visible:
        whole = f" of this machine ({len(driver.gpus)})" if driver.gpus else ""
        return _unusable("hidden", f"{_masks(facts)} hides every GPU{whole}", _unmask(facts))
    return _judge_gpus(facts)


def _judge_gpus(facts: Facts) -> Probe:
    gpus = [facts.driver.gpus[i] for i in facts.visible] if facts.driver else []
    if gpus and not any(supports(facts.archs, gpu.capability) for gpu in gpus):
        major, minor = gpus[0].capability or (0, 0)
        return _unusable(
            "unsupported_arch",
            f"torch {facts.torch_version} has no kernels for {gpus[0].name or 'this GPU'} "
            f"(sm_{major}{minor}), only for {' '.join(facts.archs)}",
            f"install a build of torch that supports this GPU, see {_DOWNLOAD}",
        )
    if facts.count == 0:
        return _unusable(
            "broken",
            f"torch.cuda is not available or counts no device, although the driver shows "
            f"{len(gpus)}",
            "run `python -c 'import torch; torch.cuda.init()'` to see the error of CUDA",
        )
    return Probe("cuda", facts.count or len(gpus))


def _judge_by_torch_alone(facts: Facts) -> Probe:
    finds_none = (
        f"torch {facts.torch_version} finds no {'CUDA' if facts.hip is None else 'ROCm'} GPU"
    )
    if facts.masks:
        return _unusable("hidden", f"{finds_none} with {_masks(facts)}", _unmask(facts))
    return _unusable(
        "no_device", finds_none, "check that the driver is installed and shows the GPU"
    )


def _unusable(reason: Reason, sentence: str, remedy: str) -> Probe:
    return Probe("cuda", 0, reason, sentence, remedy)


def _masks(facts: Facts) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in facts.masks) or "the environment"


def _unmask(facts: Facts) -> str:
    name = facts.masks[0][0] if facts.masks else "CUDA_VISIBLE_DEVICES"
    return f"unset {name}, or set it to the GPUs to use before the first use of CUDA"


def _major(version: str | None) -> int:
    number = re.match(r"\d{1,9}", version or "")
    return int(number.group()) if number else 0


def supports(archs: Iterable[str], capability: tuple[int, int] | None) -> bool:
    """Whether kernels built for `archs` run on a GPU; what is not known counts as supported.

    Args:
        archs: What `torch.cuda.get_arch_list()` returns; empty means unknown.
        capability: The compute capability of the GPU; None means unknown.

    Example:
        >>> supports(["sm_80", "sm_90"], (8, 6)), supports(["sm_80", "sm_90"], (7, 5))
        (True, False)
    """
    archs = tuple(archs)
    # NVIDIA does not support code for other chips on integrated ones, which is less than to say
    # that none runs; and here, unlike in the report on the environment, no kernel can be tried.
    if not archs or capability is None or capability in INTEGRATED:
        return True
    return any(arch_runs(arch, capability) is not False for arch in archs)


def device_name(index: int) -> str:
    """The name of a GPU as CUDA counts them; empty if it is unknown."""
    simulation = _simulation()
    if simulation is not None:
        return str(simulation.get_device_name(index))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return torch.cuda.get_device_name(index)
    facts = ask()
    driver, visible = facts.driver, facts.visible
    if driver is None:
        return ""
    if not driver.masked and len({gpu.name for gpu in driver.gpus}) > 1:
        driver = _ask_exactly()  # only CUDA itself knows which of them it counts first
        visible = tuple(range(len(driver.gpus)))
    return driver.gpus[visible[index]].name if index < len(visible) else ""
