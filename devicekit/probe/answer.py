"""The shape of an answer: usable or not, and why."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["REASONS", "Probe", "Reason"]

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
