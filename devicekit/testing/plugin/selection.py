"""Which devices the tests of a run are for: options, their meaning, what is missing."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

SIMULATED = "sim"
_ENVIRONMENT_VARIABLE = "DEVICEKIT_TEST_DEVICES"
_DEFAULT = "auto"


@dataclass
class Selection:
    """The devices of a run, in the order in which they were asked for.

    Attributes:
        specs: One name a device, `cpu` first where it is among them.
        left_out: Devices that are not exercised, each with the reason.
    """

    specs: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def requested(config: pytest.Config) -> tuple[str, str]:
    """Returns the text that selects the devices, and the name of where it was found."""
    option = config.getoption("--devicekit-devices")
    if option is not None:
        return str(option), "--devicekit-devices"
    ini = " ".join(str(config.getini("devicekit_devices")).split())
    if ini:
        return ini, "devicekit_devices"
    variable = os.environ.get(_ENVIRONMENT_VARIABLE)
    if variable is not None:
        return variable, _ENVIRONMENT_VARIABLE
    return _DEFAULT, "default"


def check(config: pytest.Config) -> None:
    """Checks the selected names before anything is collected.

    Only a name that must be looked up needs torch: not auto, all, the CPU or the simulation.

    Raises:
        pytest.UsageError: A name is no device, or a device asked for by name is missing.
    """
    names, source = _names(config)
    for name in names:
        if name not in ("auto", "all", "cpu") and not _is_simulated(name):
            _look_up(name, source)


def select(config: pytest.Config) -> Selection:
    """Resolves the selected names, already checked, against this machine; imports torch."""
    selection = Selection()
    for name in _names(config)[0]:
        for spec in _expand(name):
            if spec not in selection.specs:
                selection.specs.append(spec)
    selection.left_out = _left_out(selection.specs)
    return selection


def real_accelerators() -> list[str]:
    """The types of the real accelerators that can be used here."""
    from devicekit.probe import known_types, probe

    return [
        type_
        for type_ in known_types()
        if type_ not in ("cpu", "meta", SIMULATED) and _usable(probe(type_))
    ]


def require(requirement: str) -> None:
    """Checks one value of `--devicekit-require`, such as "cuda" or "cuda:2" (at least two of them).

    Raises:
        pytest.UsageError: The value cannot be read, or there are fewer devices than it demands.
    """
    from devicekit.probe import known_types, probe

    type_, _, number = requirement.partition(":")
    if type_ not in known_types() or (number and not number.isdecimal()):
        raise pytest.UsageError(
            f"--devicekit-require: {requirement!r} is not TYPE or TYPE:COUNT; "
            f"known types: {', '.join(known_types())}"
        )
    found = probe(type_)
    count = int(number or 1)
    if found.reason is not None:
        raise pytest.UsageError(
            f"--devicekit-require: {requirement!r} is missing: {found.sentence} {found.remedy}"
        )
    if found.count < count:
        raise pytest.UsageError(
            f"--devicekit-require: {requirement!r} is missing: {count} needed, {found.count} found"
        )


def worker_index(count: int) -> int:
    """The ordinal, among `count` visible devices, for this process.

    Under pytest-xdist each worker takes its own, round robin; else the first. Environment variables
    such as CUDA_VISIBLE_DEVICES are not touched: a worker that rewrote them would leave the mask
    that its caller had set.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    number = worker.removeprefix("gw")
    return int(number) % count if number.isdecimal() and count else 0


def _names(config: pytest.Config) -> tuple[list[str], str]:
    text, source = requested(config)
    names = text.replace(",", " ").split()
    if not names:
        raise pytest.UsageError(f"{source}: no device is named in {text!r}; try 'auto'")
    return names, source


def _expand(name: str) -> list[str]:
    if name not in ("auto", "all"):
        return [name]
    real = real_accelerators()
    return ["cpu", *real] + ([SIMULATED] if name == "all" or not real else [])


def _look_up(name: str, source: str) -> None:
    from devicekit.device import Device
    from devicekit.errors import DeviceSpecError, DeviceUnavailableError

    try:
        Device(name, fallback=None)
    except DeviceSpecError as error:
        raise pytest.UsageError(f"{source}: {name!r} is not a device: {error}") from None
    except DeviceUnavailableError as error:
        raise pytest.UsageError(f"{source}: {name!r} cannot be used here: {error}") from None


def _is_simulated(name: str) -> bool:
    type_, _, index = name.partition(":")
    return type_ == SIMULATED and (not index or index.isdecimal())


def _left_out(specs: Sequence[str]) -> dict[str, str]:
    from devicekit.probe import known_types, probe

    chosen = {spec.partition(":")[0] for spec in specs}
    reasons: dict[str, str] = {}
    for type_ in ("cuda", "mps", "xpu"):
        if type_ in chosen or type_ not in known_types():
            continue
        found = probe(type_)
        reasons[type_] = "not selected" if found.reason is None else found.sentence
    return reasons


def _usable(found: object) -> bool:
    return getattr(found, "reason", None) is None and getattr(found, "count", 0) > 0
