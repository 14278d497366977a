"""The markers: their arguments checked, and what they say of one test on one device."""

import re
from dataclasses import dataclass

import pytest

from devicekit.testing.plugin.selection import SIMULATED

REGISTERED = (
    "devicekit_requires(type, count=1, capability=None, memory=None): skip unless there are "
    '`count` devices of `type` ("cuda", "gpu" for any accelerator, ...) with at least this compute '
    'capability, such as (8, 0), and memory, such as "16 GiB"',
    "devicekit_skip(type, reason=...): skip on this device",
    "devicekit_xfail(type, reason=..., raises=None, strict=True): fails on this device",
    "devicekit_check(memory=False, sync=False, leftovers=False): after the test no memory is left "
    "on the device, during it nothing synchronised without being asked, and no tensor was left on "
    "another device",
)

_UNITS = {
    "": 1,
    "B": 1,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}


@dataclass(frozen=True)
class Requirement:
    """What `devicekit_requires` demands; memory in bytes."""

    type: str
    count: int = 1
    capability: tuple[int, int] | None = None
    memory: int | None = None

    def missing_on(self, type_: str, index: int) -> str | None:
        """Says what a device of `type_` lacks, or returns None."""
        import torch

        from devicekit.probe import probe

        if not self.matches(type_):
            return f"needs {self.type}, runs on {type_}"
        found = probe(type_)
        if found.reason is not None:
            return f"needs {self.type}: {found.sentence}"
        if found.count < self.count:
            return f"needs {self.count} devices of type {type_}, found {found.count}"
        if self.capability is None and self.memory is None:
            return None
        if type_ not in ("cuda", SIMULATED):
            return f"needs a compute capability or memory, and {type_} does not say what it has"
        properties = torch.get_device_module(type_).get_device_properties(index)
        capability = (properties.major, properties.minor)
        if self.capability is not None and capability < self.capability:
            return f"needs compute capability {self.capability}, found {capability}"
        if self.memory is not None and properties.total_memory < self.memory:
            found_gib = properties.total_memory / 2**30
            return f"needs {self.memory / 2**30:.1f} GiB of memory, found {found_gib:.1f} GiB"
        return None

    def matches(self, type_: str) -> bool:
        """Whether a device of `type_` is of the kind that is demanded."""
        if self.type in ("gpu", "accelerator"):
            return type_ != "cpu"
        return self.type == type_


def validate(item: pytest.Item, has_device: bool) -> None:
    """Checks the arguments of all devicekit markers of a test.

    Raises:
        pytest.UsageError: A marker has wrong arguments, or the test takes no device to apply it to.
    """
    for mark in item.iter_markers("devicekit_requires"):
        requirement(mark, item)
    for name in ("devicekit_skip", "devicekit_xfail"):
        for mark in item.iter_markers(name):
            _type_of(mark, item)
            if name == "devicekit_skip" and not isinstance(mark.kwargs.get("reason"), str):
                raise _usage(item, mark, "needs `reason=` as text")
            if not has_device:
                raise _usage(item, mark, "the test takes neither `device` nor `devices`")
            _only(
                mark,
                item,
                {"reason", "raises", "strict"} if name == "devicekit_xfail" else {"reason"},
            )
    for mark in item.iter_markers("devicekit_check"):
        if mark.args:
            raise _usage(item, mark, "takes keywords only: memory=, sync=, leftovers=")
        _only(mark, item, {"memory", "sync", "leftovers"})
        if not has_device:
            raise _usage(item, mark, "the test takes neither `device` nor `devices`")


def requirement(mark: pytest.Mark, item: pytest.Item) -> Requirement:
    """Reads a `devicekit_requires` marker."""
    _only(mark, item, {"count", "capability", "memory"})
    type_ = _type_of(mark, item)
    count = mark.kwargs.get("count", 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise _usage(item, mark, f"`count` must be a positive integer, not {count!r}")
    capability = mark.kwargs.get("capability")
    if capability is not None and not (
        isinstance(capability, tuple)
        and len(capability) == 2
        and all(isinstance(number, int) for number in capability)
    ):
        raise _usage(item, mark, f"`capability` must be a pair such as (8, 0), not {capability!r}")
    return Requirement(type_, count, capability, _bytes(mark, item))


def on_device(item: pytest.Item, type_: str) -> list[pytest.Mark]:
    """The skip and xfail markers of a test that speak of devices of this type."""
    return [
        mark
        for name in ("devicekit_skip", "devicekit_xfail")
        for mark in item.iter_markers(name)
        if Requirement(mark.args[0]).matches(type_)
    ]


def _type_of(mark: pytest.Mark, item: pytest.Item) -> str:
    from devicekit.probe import known_types

    if len(mark.args) != 1 or not isinstance(mark.args[0], str):
        raise _usage(item, mark, f"takes one device type as text, not {mark.args!r}")
    type_ = mark.args[0]
    known = {*known_types(), "gpu", "accelerator"}
    if type_ not in known:
        raise _usage(item, mark, f"{type_!r} is no device type; known: {', '.join(sorted(known))}")
    return type_


def _bytes(mark: pytest.Mark, item: pytest.Item) -> int | None:
    memory = mark.kwargs.get("memory")
    if memory is None or (isinstance(memory, int) and not isinstance(memory, bool) and memory > 0):
        return memory
    match = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory)
        if isinstance(memory, str)
        else None
    )
    if match is None or match[2].upper() not in _UNITS:
        raise _usage(item, mark, f'`memory` must be bytes or text such as "16 GiB", not {memory!r}')
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _only(mark: pytest.Mark, item: pytest.Item, allowed: set[str]) -> None:
    unknown = set(mark.kwargs) - allowed
    if unknown:
        raise _usage(item, mark, f"unknown argument `{unknown.pop()}`; it takes {sorted(allowed)}")


def _usage(item: pytest.Item, mark: pytest.Mark, problem: str) -> pytest.UsageError:
    return pytest.UsageError(f"{item.nodeid}: marker {mark.name}: {problem}")
