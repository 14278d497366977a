"""Device: say what you want, get what runs here, know why."""

import difflib
import numbers
import os
import re
import reprlib
from collections.abc import Callable, Iterator
from typing import NoReturn, cast

import torch
from torch import device as TorchDevice  # the class below has an attribute `torch`

from devicekit import compat
from devicekit.errors import (
    DeviceError,
    DeviceFallbackWarning,
    DeviceMismatchError,
    DeviceSpecError,
    DeviceUnavailableError,
    warn,
)
from devicekit.probe import MASKS, Probe, accelerator_types, device_name, known_types, probe

__all__ = ["Device"]

_SPEC = re.compile(r"(?P<type>[a-z_][a-z0-9_]*?)(?::(?P<index>0|[1-9][0-9]*))?")
_LARGEST_INDEX = 127  # torch keeps the index in eight bits: its "cuda:256" is "cuda:0"
_NO_INDEX = ("cpu", "meta")

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


class Device(str):
    """A device that can be used here, as the text that torch takes for it.

    `Device` is a `str` such as "cuda:0" and goes wherever torch takes a device. An accelerator
    always has its index and the CPU never has one, so that `==` means what it says. It equals, and
    hashes like, the `torch.device` of the same text; compared with a plain string, the text counts.

    Args:
        spec: "auto" or None (the best accelerator, else the CPU; the environment variable
            `DEVICEKIT_DEVICE` overrides it), "gpu" (any accelerator), "cuda", "cuda:1", "cpu",
            "mps", any other type that torch knows, a `torch.device`, a `Device`, or an int (the
            index of the accelerator). Without an index, `LOCAL_RANK` (as set by torchrun) is the
            index, else the current device.
        fallback: What to use when there is no usable accelerator of the type asked for, with one
            `DeviceFallbackWarning`; None means an error, and so does `DEVICEKIT_STRICT=1`.

    Raises:
        DeviceSpecError: `spec` is no device: a wrong type, a misspelt name, a bad index.
        DeviceUnavailableError: The device cannot be used here, and there is no fallback; or there
            are such devices, but none with this index.

    Example:
        >>> device = Device("cpu")
        >>> device, device.torch, device == torch.device("cpu"), device == "cpu"
        (Device('cpu'), device(type='cpu'), True, True)
        >>> torch.zeros(2, device=device)
        tensor([0., 0.])
    """

    __slots__ = ("_reason", "_requested", "_torch", "_why")

    _torch: "torch.device | None"  # None if torch has no such type (unpickled from elsewhere)
    _requested: str
    _reason: str | None
    _why: str

    def __new__(cls, spec: object = "auto", *, fallback: object = "cpu") -> "Device":
        """Resolve `spec`."""
        try:
            return _cache[spec.__class__, spec, fallback.__class__, fallback, _surroundings()]
        except (KeyError, TypeError):  # TypeError: something that cannot be hashed
            return _resolve_and_keep(spec, fallback)

    @property
    def torch(self) -> TorchDevice:
        """The `torch.device`."""
        if self._torch is None:
            self._torch = torch.device(str(self))  # the backend may be registered by now
        return self._torch

    @property
    def type(self) -> str:
        """The type without the index, such as "cuda"."""
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:
        """The index of the accelerator; None for the CPU."""
        digits = self.partition(":")[2]
        return int(digits) if digits else None

    @property
    def name(self) -> str:
        """What the maker calls it, such as "NVIDIA H200"; the type where that is unknown."""
        return device_name(self.type, self.index or 0)

    @property
    def requested(self) -> str:
        """What was asked for, as text."""
        return self._requested

    @property
    def reason(self) -> str | None:
        """Why it is not (another) accelerator: a code of `devicekit.probe.REASONS`.

        None if it is what was asked for, or, for "auto", if it is an accelerator.
        """
        return self._reason

    @property
    def why(self) -> str:
        """The reason as a sentence, with what to do about it; empty if there is none."""
        return self._why

    @property
    def is_accelerator(self) -> bool:
        """Whether it is neither the CPU nor `meta`."""
        return self.type not in _NO_INDEX

    @staticmethod
    def available() -> list["Device"]:
        """List the devices that can be used here, the best first and the CPU last.

        Example:
            >>> Device.available()[-1]
            Device('cpu')
        """
        found = [
            torch.device(type, index)
            for type in accelerator_types()
            for index in range(probe(type).count)
        ]
        return [_make(device) for device in [*found, torch.device("cpu")]]

    @staticmethod
    def of(x: object) -> "Device":
        """Return the one device of the tensors in `x`.

        Args:
            x: A tensor, a module, an optimizer (its parameters count), or a batch of any nesting.

        Raises:
            DeviceMismatchError: The tensors are on several devices; the text names them.
            DeviceError: There is no tensor in `x`.

        Example:
            >>> Device.of({"image": torch.zeros(2, 3), "label": [torch.tensor(1)]})
            Device('cpu')
        """
        if isinstance(x, torch.Tensor):
            return _make(x.device)
        return _device_of(x)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        if isinstance(other, torch.device):
            return self._torch == other
        return NotImplemented

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return str.__hash__(self) if self._torch is None else hash(self._torch)

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __enter__(self) -> "Device":
        """Make new tensors on this device, as `with torch.device(...)` does."""
        self.torch.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.torch.__exit__(*exc_info)

    def __reduce__(self) -> tuple[Callable[..., "Device"], tuple[object, ...]]:
        # Nothing is looked up on the other machine: a checkpoint that holds "cuda:1" must open on
        # a laptop, and whoever unpickles decides where things go.
        return _unpickle, (str(self), self._requested, self._reason, self._why)

    def __copy__(self) -> "Device":
        return self

    def __deepcopy__(self, memo: object) -> "Device":
        return self


_cache: dict[tuple[object, ...], Device] = {}
_warned: set[str] = set()

_read_environment = compat.environment_getter(
    ("DEVICEKIT_DEVICE", "DEVICEKIT_STRICT", "LOCAL_RANK", "WORLD_SIZE", *MASKS)
)


def _surroundings() -> tuple[object, ...]:
    """All that can change an answer; torch's own functions are there because tests replace them."""
    cuda = torch.cuda
    backend = compat.private_backend()
    return (
        _read_environment(),
        cuda.is_available,
        cuda.device_count,
        torch.backends.mps.is_available,
        cuda.current_device() if cuda.is_initialized() else None,
        backend and _state(backend),
    )


def _state(backend: str) -> tuple[object, ...]:
    module = getattr(torch, backend, None)
    if module is None or not module.is_available():
        return (backend, 0, 0)
    return (backend, module.device_count(), module.current_device())


def _resolve_and_keep(spec: object, fallback: object) -> Device:
    surroundings = _surroundings()
    device = _resolve(spec, fallback)
    # Kept only where `_surroundings` covers all that the answer rests on: mocks may change their
    # mind, and other backends have a current device that it does not look at.
    covered = ("cpu", "meta", "cuda", "mps", compat.private_backend())
    if device.type in covered and isinstance(spec, _KEPT) and not _is_mocked():
        if len(_cache) >= 1000:
            _cache.clear()
        _cache[spec.__class__, spec, fallback.__class__, fallback, surroundings] = device
    return device


_KEPT = (str, int, torch.device, type(None))


def _is_mocked() -> bool:
    return (
        compat.is_replaced(torch.cuda.is_available, torch.cuda)
        or compat.is_replaced(torch.cuda.device_count, torch.cuda)
        or compat.is_replaced(torch.backends.mps.is_available, torch.backends.mps)
    )


def forget() -> None:
    """Forget all answers and which warnings were given, so that a test starts afresh."""
    _cache.clear()
    _warned.clear()


# --- From the text to a type and an index.


def _parse(spec: object, source: str) -> tuple[str, int | None]:
    """Split a spec into type and index, without asking whether it can be used."""
    if spec is None:
        return "auto", None
    if isinstance(spec, numbers.Integral) and not isinstance(spec, bool):
        return "gpu", _checked_index(int(spec), spec, source)
    if isinstance(spec, torch.device):
        text = str(spec)
    elif isinstance(spec, str):
        text = str.__str__(spec)
    else:
        _refuse_type(spec, source)
    match = _SPEC.fullmatch(text)
    if match is None or not _is_known(match["type"]):
        _refuse_text(text, source)
    type, digits = match["type"], match["index"]
    if digits is None:
        return type, None
    if type == "auto":
        raise DeviceSpecError(
            f"{source} is {text!r}, but 'auto' takes no index: write 'gpu:{digits}'"
        )
    index = _checked_index(int(digits[:10]), text, source)
    if type not in _NO_INDEX:
        return type, index
    if index > 0:
        raise DeviceSpecError(
            f"{source} is {text!r}, but there is only one {type!r}: write {type!r}"
        )
    return type, None


def _checked_index(index: int, spec: object, source: str) -> int:
    if index < 0:
        raise DeviceSpecError(f"{source} is {spec!r}, but the index of a device starts at 0")
    if index > _LARGEST_INDEX:
        raise DeviceSpecError(
            f"{source} is {_show(spec)}, but the index of a device is at most {_LARGEST_INDEX}: "
            "torch keeps it in eight bits"
        )
    return index


def _is_known(name: str) -> bool:
    return name in ("auto", "gpu", *known_types()) or compat.torch_knows(name)


def _show(value: object) -> str:
    return _repr.repr(value)


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


def _refuse_type(spec: object, source: str) -> NoReturn:
    kind = type(spec).__name__
    if isinstance(spec, torch.Tensor | torch.nn.Module):
        raise DeviceSpecError(
            f"{source} must name a device, but found a {kind}: "
            "Device.of(...) gives the device of a tensor or module"
        )
    hint = ""
    if isinstance(spec, bytes | bytearray):
        hint = f", did you mean {_show(bytes(spec).decode('utf-8', 'replace'))}?"
    raise DeviceSpecError(
        f"{source} must be a str, an int, a torch.device or None, "
        f"but found {_show(spec)} of type {kind}{hint}"
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
    raise DeviceSpecError(f"{source} is {_show(text)}, which is not a device: {hint}")


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
    if not digits or name in (*_NO_INDEX, "auto"):
        return name
    return f"{name}:{int(digits)}" if int(digits) <= _LARGEST_INDEX else None


# --- From type and index to a device.


def _resolve(spec: object, fallback: object, source: str = "`spec`") -> Device:
    if isinstance(spec, Device) and spec.type in _NO_INDEX:
        return spec
    type, index = _parse(spec, source)
    requested = "auto" if spec is None else str(spec)
    if type == "auto" and (chosen := os.environ.get("DEVICEKIT_DEVICE")):
        type, index = _parse(chosen, "the environment variable DEVICEKIT_DEVICE")
        requested = chosen
    if type in _NO_INDEX:
        return _make(torch.device(type), requested)
    answer = _best() if type in ("auto", "gpu") else probe(type)
    if answer.reason is None:
        return _make(_with_index(answer, index, requested), requested)
    if type == "auto":
        return _make(torch.device("cpu"), requested, answer.reason, _sentence(answer))
    return _fall_back(requested, answer, fallback)


def _best() -> Probe:
    """The answer for the best usable type of accelerator, else for the most telling failure."""
    answers = []
    for type in accelerator_types():
        if type == "mps" and _is_distributed():
            continue
        answer = probe(type)
        if answer.reason is None:
            return answer
        answers.append(answer)
    # A backend that is there but cannot be used says more than one that is not there at all.
    telling = (answer for answer in answers if answer.reason != "not_built")
    return next(telling, answers[0])


def _is_distributed() -> bool:
    # No backend of torch.distributed works on MPS, and all ranks would share the one GPU.
    return os.environ.get("WORLD_SIZE", "1").strip() not in ("", "0", "1")


def _with_index(answer: Probe, index: int | None, requested: str) -> torch.device:
    type, count = answer.type, answer.count
    if index is None and type == "mps":
        return torch.device(type, 0)  # there is one, for all processes
    rank = _local_rank() if index is None else None
    if rank is not None and rank >= count:
        _refuse_index(
            type, rank, count, f"{requested!r} was requested in process LOCAL_RANK={rank}"
        )
    if index is not None and index >= count:
        _refuse_index(type, index, count, f"{requested!r} was requested")
    if rank is not None:
        return torch.device(type, rank)
    return torch.device(type, compat.current_index(type) if index is None else index)


def _local_rank() -> int | None:
    text = os.environ.get("LOCAL_RANK", "").strip()
    if text in ("", "-1"):  # -1 is how older launchers say "not distributed"
        return None
    if not (text.isascii() and text.isdecimal()):
        raise DeviceSpecError(
            f"the environment variable LOCAL_RANK is {text!r}, which is not the number of a "
            "process: unset it, or name the device with its index"
        )
    return int(text)


def _refuse_index(type: str, index: int, count: int, what: str) -> NoReturn:
    visible = ", ".join(f"{type}:{i}" for i in range(count))
    context = [f"LOCAL_RANK={os.environ.get('LOCAL_RANK', 'unset')}"]
    context += [f"{name}={_show(os.environ[name])}" for name in MASKS if name in os.environ]
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
    return f"{answer.sentence}. To mend it: {answer.remedy}."


def _fall_back(requested: str, answer: Probe, fallback: object) -> Device:
    why, reason = _sentence(answer), cast(str, answer.reason)
    if fallback is None or _is_strict():
        raise DeviceUnavailableError(
            f"{requested!r} cannot be used here ({reason}): {why}", requested, reason
        )
    device = _resolve(fallback, None, "`fallback`")
    message = f"{requested!r} cannot be used here ({reason}), using {str(device)!r} instead: {why}"
    if message not in _warned:
        warn(message, DeviceFallbackWarning)
        _warned.add(message)  # after it: where warnings are errors, every call must raise
    return _make(device.torch, requested, reason, why)


def _is_strict() -> bool:
    return os.environ.get("DEVICEKIT_STRICT", "").strip().lower() not in ("", "0", "false", "no")


def _make(
    device: torch.device, requested: str = "", reason: str | None = None, why: str = ""
) -> Device:
    return _build(str(device), device, requested or str(device), reason, why)


def _build(
    text: str, device: torch.device | None, requested: str, reason: str | None, why: str
) -> Device:
    made = str.__new__(Device, text)
    made._torch = device
    made._requested = requested
    made._reason = reason
    made._why = why
    return made


def _unpickle(text: str, requested: str, reason: str | None, why: str) -> Device:
    known = compat.torch_knows(text.partition(":")[0])
    return _build(text, torch.device(text) if known else None, requested, reason, why)


# `torch.load` opens a checkpoint with a Device in it, with `weights_only=True` too.
torch.serialization.add_safe_globals([_unpickle])


# --- The device of data.


def _device_of(x: object) -> Device:
    places: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for path, tensor in _named_tensors(x):
        places.setdefault(tensor.device, []).append((path, tensor))
    if not places:
        raise DeviceError(
            f"found no tensor in `x`, a {x.__class__.__name__}, so it has no device: give "
            "Device.of() something that holds a tensor, or name the device you want"
        )
    if len(places) > 1:
        raise DeviceMismatchError(_describe(places))
    return _make(next(iter(places)))


def _named_tensors(x: object) -> Iterator[tuple[str, torch.Tensor]]:
    # Inside the function: the walker stands beside this module, not below it.
    from devicekit.tree import find_tensors

    if isinstance(x, torch.optim.Optimizer):
        # Its state is left out: torch keeps `step` on the CPU on purpose.
        for i, group in enumerate(x.param_groups):
            for j, parameter in enumerate(group["params"]):
                yield f"optimizer.param_groups[{i}]['params'][{j}]", parameter
        return
    if not isinstance(x, torch.nn.Module):
        yield from find_tensors(x, name="data")
        return
    found = False
    for path, tensor in find_tensors(x, name="model"):
        found = True
        yield path, tensor
    if not found:
        # The replicas of DataParallel and the wrappers of FSDP hold plain tensors, no parameters.
        for name, module in x.named_modules():
            prefix = f"model.{name}" if name else "model"
            for attribute, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    yield f"{prefix}.{attribute}", value


_SHOWN = 3


def _describe(places: dict[torch.device, list[tuple[str, torch.Tensor]]]) -> str:
    names = [str(device) for device in places]
    width = max(len(name) for name in names)
    shown = [found[:_SHOWN] for found in places.values()]
    path_width = max(len(path) for found in shown for path, _ in found)
    lines = [
        "expected all tensors to be on the same device, but found "
        f"{', '.join(names[:-1])} and {names[-1]}",
        "",
    ]
    for name, found in zip(names, places.values(), strict=True):
        for i, (path, tensor) in enumerate(found[:_SHOWN]):
            kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            lines.append(f"  {name if i == 0 else '':{width}}  {path:{path_width}}  {kind}")
        if len(found) > _SHOWN:
            lines.append(f"  {'':{width}}  and {len(found) - _SHOWN} more")
    root = re.match(r"\w+", next(iter(places.values()))[0][0])
    target = next((name for name in names if name not in _NO_INDEX), names[0])
    variable = root[0] if root else "data"
    lines += ["", f'  fix: {variable} = devicekit.to_device({variable}, "{target}")']
    return "\n".join(lines)
