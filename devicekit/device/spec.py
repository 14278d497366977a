"""From what a user writes for a device to its type and index."""

import difflib
import numbers
import re
import reprlib
from typing import NoReturn, cast

import torch

from devicekit import compat
from devicekit.errors import DeviceSpecError
from devicekit.probe import accelerator_types, known_types

__all__ = ["WITHOUT_INDEX", "parse", "show"]

_SPEC = re.compile(r"(?P<type>[a-z_][a-z0-9_]*?)(?::(?P<index>0|[1-9][0-9]*))?")
_LARGEST_INDEX = 127  # torch keeps the index in eight bits: its "cuda:256" is "cuda:0"
WITHOUT_INDEX = ("cpu", "meta")

# What people write for a device that has another name here.
_OTHER_NAMES = {
    "accelerator": "gpu",
    "amd": "cuda",
    "apple": "mps",
    "default": "auto",
    "hip": "cuda",
    "intel": "xpu",
    "m1": "mps",
    "metal": "mps",
    "none": "auto",
    "nvidia": "cuda",
    "rocm": "cuda",
    "tpu": "xla",
}


def parse(spec: object, source: str) -> tuple[str, int | None]:
    """Split a spec into type and index, without asking whether it can be used."""
    if spec is None:
        return "auto", None
    # By the type: an object that stands for another one may raise when it is asked for its class.
    cls = type(spec)
    if issubclass(cls, numbers.Integral) and not issubclass(cls, bool):
        return "gpu", _checked_index(int(cast(int, spec)), spec, source)
    if issubclass(cls, torch.device):
        text = str(spec)
    elif issubclass(cls, str):
        text = str.__str__(cast(str, spec))
    else:
        _refuse_type(spec, source)
    match = _SPEC.fullmatch(text)
    if match is None or not _is_known(match["type"]):
        _refuse_text(text, source)
    kind, digits = match["type"], match["index"]
    if digits is None:
        return kind, None
    if kind == "auto":
        raise DeviceSpecError(
            f"{source} is {text!r}, but 'auto' takes no index: write 'gpu:{digits}'"
        )
    index = _checked_index(int(digits[:10]), text, source)
    if kind not in WITHOUT_INDEX:
        return kind, index
    if index > 0:
        raise DeviceSpecError(
            f"{source} is {text!r}, but there is only one {kind!r}: write {kind!r}"
        )
    return kind, None


def _checked_index(index: int, spec: object, source: str) -> int:
    if index < 0:
        raise DeviceSpecError(f"{source} is {show(spec)}, but the index of a device starts at 0")
    if index > _LARGEST_INDEX:
        raise DeviceSpecError(
            f"{source} is {show(spec)}, but the index of a device is at most {_LARGEST_INDEX}: "
            "torch keeps it in eight bits"
        )
    return index


def _is_known(name: str) -> bool:
    return name in ("auto", "gpu", *known_types()) or compat.torch_knows(name)


def show(value: object) -> str:
    """The value for a message, shortened where it is long."""
    try:
        return _repr.repr(value)
    except Exception:  # such as an int with more digits than Python writes; only words are lost
        return f"<{type(value).__name__}>"


class _Repr(reprlib.Repr):
    def repr_instance(self, x: object, level: int) -> str:
        if hasattr(type(x), "__iter__"):  # what it holds may be large, or have no end
            return f"<{type(x).__name__}>"
        return super().repr_instance(x, level)


_repr = _Repr()
_repr.maxstring = _repr.maxother = 80


def _refuse_type(spec: object, source: str) -> NoReturn:
    cls = type(spec)
    kind = cls.__name__
    if issubclass(cls, torch.Tensor | torch.nn.Module):
        raise DeviceSpecError(
            f"{source} must name a device, but found a {kind}: "
            "Device.of(...) gives the device of a tensor or module"
        )
    hint = ""
    if cls in (bytes, bytearray):
        hint = f", did you mean {show(bytes(cast(bytes, spec)).decode('utf-8', 'replace'))}?"
    raise DeviceSpecError(
        f"{source} must be a str, an int, a torch.device or None, "
        f"but found {show(spec)} of type {kind}{hint}"
    )


def _refuse_text(text: str, source: str) -> NoReturn:
    negative = re.fullmatch(r"[a-z_]+:(-[0-9]{1,9})", text)
    if negative is not None:
        _checked_index(int(negative[1]), text, source)
    suggestion = _suggest(text)
    names = ", ".join(repr(name) for name in ("auto", "gpu", *accelerator_types(), "cpu"))
    hint = (
        f"did you mean {suggestion!r}?"
        if suggestion is not None
        else f"write one of {names}, or one with an index, such as 'cuda:1'"
    )
    raise DeviceSpecError(f"{source} is {show(text)}, an invalid device string: {hint}")


def _suggest(text: str) -> str | None:
    """The nearest text that is right, or None if nothing is near."""
    clean = text.strip().lower()
    match = re.fullmatch(r"([a-z_]{2,20}?)[\s:_-]*([0-9]{0,9})", clean)
    if match is None:
        return _OTHER_NAMES.get(clean)
    name, digits = match[1], match[2]
    if not _is_known(name):
        choices = ("auto", "gpu", *known_types())
        near = difflib.get_close_matches(name, choices, n=1)
        if name not in _OTHER_NAMES and not near:
            return None
        name = _OTHER_NAMES.get(name) or near[0]
    if not digits or name in (*WITHOUT_INDEX, "auto"):
        return name
    return f"{name}:{int(digits)}" if int(digits) <= _LARGEST_INDEX else None
