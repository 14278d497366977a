"""Which devices the tests of a run are for: options, their meaning, what is missing."""

import os
from dataclasses import dataclass, field

import pytest

SIMULATED = "sim"
COUNT = 2
"""How many simulated devices there are."""

_ENVIRONMENT_VARIABLE = "DEVICEKIT_TEST_DEVICES"
_DEFAULT = "auto"
_GROUPS = ("auto", "all")
_REPORTED = ("cuda", "mps", "xpu")


@dataclass
class Selection:
    """The devices of a run, in the order in which they were asked for.

    Attributes:
        specs: One name a device; they are the ids of the tests.
        left_out: Types that are not exercised, each with the reason.
        problem: Why the run cannot start, None if it can.
    """

    specs: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


def requested(config: pytest.Config) -> tuple[str, str]:
    """Returns the text that selects the devices, and the name of where it was found."""
    option = config.getoption("--devicekit-devices")
    if option:
        return ",".join(option), "--devicekit-devices"
    ini = ",".join(str(config.getini("devicekit_devices")).split())
    if ini:
        return ini, "devicekit_devices"
    variable = os.environ.get(_ENVIRONMENT_VARIABLE)
    if variable:
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
        if name not in _GROUPS:
            _spec(name, source)


def select(config: pytest.Config) -> Selection:
    """Resolves the selected names, already checked, against this machine; imports torch."""
    from devicekit.probe import probe

    names, source = _names(config)
    found: list[str] = []
    for name in names:
        found += _group(name) if name in _GROUPS else [_spec(name, source)]
    selection = Selection(list(dict.fromkeys(found)))
    chosen = {spec.partition(":")[0] for spec in selection.specs}

    why_not = why_not_simulated() if SIMULATED in chosen else None
    if why_not is not None:
        selection.specs = [spec for spec in selection.specs if not _is_simulated(spec)]
        selection.left_out[SIMULATED] = why_not
        if any(_is_simulated(name) for name in names):
            selection.problem = f"{source}: {SIMULATED!r} cannot be used here: {why_not}"
    elif chosen <= {"cpu", "meta"}:
        selection.left_out[SIMULATED] = "not selected"
    for type_ in _REPORTED:
        if type_ not in chosen:
            answer = probe(type_)
            selection.left_out[type_] = _why(answer.reason, answer.sentence)
    return selection


def require(requirement: str) -> None:
    """Checks one value of `--devicekit-require`, such as "cuda" or "cuda:2" (at least two of them).

    Raises:
        pytest.UsageError: The value cannot be read, or there are fewer devices than it demands.
    """
    from devicekit.device import Device
    from devicekit.probe import known_types, probe

    type_, colon, number = requirement.partition(":")
    known = (*known_types(), "gpu")
    if type_ not in known or (colon and not (number.isdecimal() and int(number) > 0)):
        raise pytest.UsageError(
            f"--devicekit-require: {requirement!r} is not TYPE or TYPE:COUNT; "
            f"known types: {', '.join(known)}"
        )
    count, needed = int(number or 1), f"--devicekit-require: {requirement!r} is missing: "
    if type_ == SIMULATED:
        why_not, found = why_not_simulated(), COUNT
    else:
        if type_ == "gpu":  # the best accelerator; the CPU stands for none
            best = Device("auto")
            if best.type == "cpu":
                raise pytest.UsageError(f"{needed}{best.why}")
            type_ = best.type
        answer = probe(type_)
        why_not, found = answer.reason and f"{answer.sentence}; {answer.remedy}", answer.count
    if why_not is not None:
        raise pytest.UsageError(f"{needed}{why_not}")
    if found < count:
        raise pytest.UsageError(f"{needed}{count} needed, {found} found")


def why_not_simulated() -> str | None:
    """Says why there can be no device "sim" in this process, or returns None."""
    from devicekit.testing.simulation import private

    try:
        private.require()
    except NotImplementedError as error:
        return str(error)
    backend = private.backend_name()
    if backend not in ("privateuseone", SIMULATED):
        return f"torch allows one backend of this kind in a process, and {backend!r} is registered"
    return None


def worker_index(count: int) -> int:
    """The ordinal, among `count` visible devices, for this process.

    Under pytest-xdist each worker takes its own, round robin; else the first. Environment variables
    such as CUDA_VISIBLE_DEVICES are not touched: a worker that rewrote them would leave the mask
    that its caller had set.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return int(number) % count if number.isdecimal() and count else 0


def _names(config: pytest.Config) -> tuple[list[str], str]:
    text, source = requested(config)
    names = text.replace(",", " ").split()
    if not names:
        raise pytest.UsageError(f"{source}: no device is named in {text!r}; try 'auto'")
    return names, source


def _group(name: str) -> list[str]:
    """The devices that "auto" or "all" stands for."""
    from devicekit.probe import known_types, probe

    real = [
        type_
        for type_ in known_types()
        if type_ not in ("cpu", "meta", SIMULATED) and probe(type_).reason is None
    ]
    return ["cpu", *real] + ([SIMULATED] if name == "all" or not real else [])


def _spec(name: str, source: str) -> str:
    """Checks a name and returns it in the one form it has as an id: with an index only if asked."""
    if name == "cpu":
        return name
    type_, _, index = name.partition(":")
    if type_ == SIMULATED:
        if index and not (index.isdecimal() and int(index) < COUNT):
            raise pytest.UsageError(
                f"{source}: {name!r} is not a device: there are {SIMULATED}:0 and {SIMULATED}:1"
            )
        return name
    from devicekit.device import Device
    from devicekit.errors import DeviceSpecError, DeviceUnavailableError

    try:
        device = Device(name, fallback=None)
    except DeviceSpecError as error:
        raise pytest.UsageError(
            f"{source}: {name!r} is not a device: {error}; auto and all are groups of devices"
        ) from None
    except DeviceUnavailableError as error:
        raise pytest.UsageError(f"{source}: {error}") from None
    return str(device) if index else device.type


def _is_simulated(name: str) -> bool:
    return name.partition(":")[0] == SIMULATED


def _why(reason: str | None, sentence: str) -> str:
    if reason is None:
        return "not selected"
    if reason == "not_built":  # one short text, so that the summary can join several types
        import torch

        return f"torch {torch.__version__} is not built for it"
    return sentence
