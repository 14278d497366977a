"""Device: say what you want, get what runs here, know why."""

from collections.abc import Callable
from typing import final

import torch
from torch import device as TorchDevice  # the class below has an attribute `torch`

from devicekit import compat
from devicekit.device.choice import VARIABLES, choose
from devicekit.device.of import device_of
from devicekit.device.spec import WITHOUT_INDEX
from devicekit.errors import forget_warnings
from devicekit.probe import accelerator_types, cuda, device_name, probe

__all__ = ["Device"]


@final
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

    _torch: TorchDevice | None  # None if torch has no such type (unpickled from elsewhere)
    _requested: str
    _reason: str | None
    _why: str

    def __new__(
        cls,
        spec: str | int | torch.device | None = "auto",
        *,
        fallback: str | int | torch.device | None = "cpu",
    ) -> "Device":
        """Resolve `spec`."""
        try:
            return _cache[spec.__class__, spec, fallback.__class__, fallback, surroundings()]
        except Exception:  # not there, or with something that cannot be hashed or compared
            pass
        return _resolve_and_keep(spec, fallback)

    def __init_subclass__(cls) -> None:
        raise TypeError(
            f"Device cannot be a base class (of {cls.__qualname__}): its objects are shared and "
            "always a Device. Fix: write a function that takes a Device, or a class that has one"
        )

    @property
    def torch(self) -> TorchDevice:
        """The `torch.device`."""
        if self._torch is None:
            # Unpickled where torch had no such type; the backend may have been imported since.
            self._torch = Device(str(self), fallback=None).torch
        return self._torch

    @property
    def type(self) -> str:
        """The type without the index, such as "cuda"."""
        return self.partition(":")[0]

    @property
    def index(self) -> int | None:  # type: ignore[override]
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
        """The code, one of `devicekit.probe.REASONS`, of why it is not another accelerator.

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
        return self.type not in WITHOUT_INDEX

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
        return _make(device_of(x))

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

# Every variable and function here can change an answer. torch's functions are among them because
# tests replace them.
surroundings = compat.surroundings_getter(VARIABLES)


def _resolve_and_keep(spec: object, fallback: object) -> Device:
    if type(spec) is Device and not spec.is_accelerator:
        return spec
    before = surroundings()
    device = _make(*choose(spec, fallback))
    if compat.surroundings_cover(device.type) and {type(spec), type(fallback)} <= _KEPT:
        if len(_cache) >= 1000:
            _cache.clear()
        _cache[spec.__class__, spec, fallback.__class__, fallback, before] = device
    return device


# Exactly these: an object of a subclass may refuse to be hashed.
_KEPT = {str, int, torch.device, type(None), Device}


def forget() -> None:
    """Forget all answers and which warnings were given, so that a test starts afresh."""
    _cache.clear()
    forget_warnings()
    cuda.forget()


def _make(
    device: TorchDevice, requested: str = "", reason: str | None = None, why: str = ""
) -> Device:
    return _build(str(device), device, requested or str(device), reason, why)


def _build(
    text: str, device: TorchDevice | None, requested: str, reason: str | None, why: str
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
