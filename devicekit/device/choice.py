"""From a type and an index to a device that runs here, or to the reason why it does not."""

import os
import re
from typing import NamedTuple, NoReturn, cast

import torch

from devicekit import compat
from devicekit.device.spec import WITHOUT_INDEX, parse, show
from devicekit.errors import (
    DeviceFallbackWarning,
    DeviceSpecError,
    DeviceUnavailableError,
    warn_once,
)
from devicekit.probe import MASKS, Probe, accelerator_types, probe

__all__ = ["VARIABLES", "Choice", "choose"]

VARIABLES = ("DEVICEKIT_DEVICE", "DEVICEKIT_STRICT", "LOCAL_RANK", "WORLD_SIZE", *MASKS)
"""The environment variables that a choice depends on."""


class Choice(NamedTuple):
    """The device to use, and where it is not the one asked for, why."""

    device: torch.device
    requested: str
    reason: str | None = None
    why: str = ""


def choose(spec: object, fallback: object, source: str = "`spec`") -> Choice:
    """Resolve a spec; the rules are those of `Device`."""
    type, index = parse(spec, source)
    requested = _text(spec)
    if type == "auto" and (chosen := _chosen()):
        type, index = parse(chosen, "the environment variable DEVICEKIT_DEVICE")
        requested = chosen
    if type in WITHOUT_INDEX:
        return Choice(torch.device(type), requested)
    answer = _best() if type in ("auto", "gpu") else probe(type)
    if answer.reason is None:
        return Choice(_with_index(answer, index, requested), requested)
    if type == "auto":
        why = _sentence(answer)
        if answer.reason in _SURPRISES:
            warn_once(
                f"'cpu' is used, although there is {answer.type!r} ({answer.reason}): {why}",
                DeviceFallbackWarning,
            )
        return Choice(torch.device("cpu"), requested, answer.reason, why)
    return _fall_back(requested, answer, fallback)


def _chosen() -> str:
    chosen = os.environ.get("DEVICEKIT_DEVICE", "")
    return "" if chosen.isspace() else chosen


def _text(spec: object) -> str:
    if spec is None:
        return "auto"
    # `str(spec)` of a subclass, such as a member of an enumeration, may be another text.
    if issubclass(type(spec), str):
        return str.__str__(cast(str, spec))
    return int.__repr__(cast(int, spec)) if issubclass(type(spec), int) else str(spec)


# There is an accelerator, and it cannot be used: nobody wants that, so "auto" warns. No driver is
# the usual state of a server without GPUs, as the default build of torch is the one for CUDA.
_SURPRISES = ("driver_too_old", "unsupported_arch", "broken")


def _best() -> Probe:
    """The answer for the best usable type of accelerator, else for the most telling failure."""
    answers = []
    for type in accelerator_types():
        answer = probe(type)
        if answer.reason is None and type == "mps" and _is_distributed():
            answer = _MPS_IS_FOR_ONE
        if answer.reason is None:
            return answer
        answers.append(answer)
    # A backend that is there but cannot be used says more than one that is not there at all.
    telling = (answer for answer in answers if answer.reason != "not_built")
    return next(telling, answers[0])


_MPS_ALONE = "torch.distributed has no backend for it, and all processes would share the one GPU"
_MPS_IS_FOR_ONE = Probe(
    "mps",
    0,
    "no_device",
    f"'mps' is left out in a distributed run (WORLD_SIZE is above 1): {_MPS_ALONE}",
    "ask for 'mps' by name, or run one process",
)


def _is_distributed() -> bool:
    return os.environ.get("WORLD_SIZE", "").strip() not in ("", "0", "1")


def _with_index(answer: Probe, index: int | None, requested: str) -> torch.device:
    type, count = answer.type, answer.count
    if index is None and type == "mps":
        if _is_distributed():
            warn_once(
                f"{requested!r} is used in a distributed run (WORLD_SIZE is above 1), although "
                f"{_MPS_ALONE}. Fix: run one process, or use 'cpu'."
            )
        return torch.device(type, 0)
    rank = _local_rank() if index is None else None
    if rank is not None and rank >= count:
        _refuse_index(type, rank, count, f"{requested!r} was requested with LOCAL_RANK={rank}")
    if index is not None and index >= count:
        _refuse_index(type, index, count, f"{requested!r} was requested")
    if rank is not None:
        return torch.device(type, rank)
    return torch.device(type, compat.current_index(type) if index is None else index)


def _local_rank() -> int | None:
    text = os.environ.get("LOCAL_RANK", "").strip()
    if text in ("", "-1"):  # -1 is how older launchers say "not distributed"
        return None
    if re.fullmatch("[0-9]{1,9}", text) is None:
        raise DeviceSpecError(
            f"the environment variable LOCAL_RANK is {show(text)}, which is not the number of a "
            "process: unset it, or name the device with its index"
        )
    return int(text)


def _refuse_index(type: str, index: int, count: int, what: str) -> NoReturn:
    visible = ", ".join(f"{type}:{i}" for i in range(count))
    context = [f"LOCAL_RANK={os.environ.get('LOCAL_RANK', 'unset')}"]
    context += [f"{name}={show(os.environ[name])}" for name in MASKS if name in os.environ]
    if type == "cuda" and "CUDA_VISIBLE_DEVICES" not in os.environ:
        context.append("CUDA_VISIBLE_DEVICES=unset")
    raise DeviceUnavailableError(
        f"{type}:{index} cannot be used (invalid device ordinal): {what}, {count} visible "
        f"({visible}); {', '.join(context)}. Start at most {count} process(es) on this machine, "
        f"use an index below {count}, or make more devices visible",
        requested=f"{type}:{index}",
        reason="no_device",
    )


def _sentence(answer: Probe) -> str:
    return f"{answer.sentence}. Fix: {answer.remedy}."


def _fall_back(requested: str, answer: Probe, fallback: object) -> Choice:
    why, reason = _sentence(answer), cast(str, answer.reason)
    if fallback is None or _is_strict():
        raise DeviceUnavailableError(
            f"{requested!r} cannot be used here ({reason}): {why}", requested, reason
        )
    device = choose(fallback, None, "`fallback`").device
    warn_once(
        f"{requested!r} cannot be used here ({reason}), using {str(device)!r} instead: {why}",
        DeviceFallbackWarning,
    )
    return Choice(device, requested, reason, why)


def _is_strict() -> bool:
    text = os.environ.get("DEVICEKIT_STRICT", "")
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("", "0", "false", "no", "off"):
        return False
    raise DeviceSpecError(
        f"the environment variable DEVICEKIT_STRICT is {show(text)}, which is neither yes nor no: "
        "write 1, true, yes or on, else 0, false, no or off, or unset it"
    )
