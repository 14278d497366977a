"""The fixtures that tests ask for by name."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from devicekit.testing.plugin.running import devices_of
from devicekit.testing.plugin.selection import SIMULATED

if TYPE_CHECKING:
    from devicekit.device import Device
    from devicekit.testing.nvml import FakeNvml
    from devicekit.testing.simulation import Simulation


# Session scope, so that fixtures of any scope can build on it and hypothesis does not object. What
# must happen around each single test is done by the hooks in running.py.
@pytest.fixture(scope="session")
def _devicekit_spec(request: pytest.FixtureRequest) -> str:
    if not hasattr(request, "param"):
        # pytest 8 does not see through a fixture that overrides the one it builds on.
        raise pytest.UsageError(
            "a fixture named `device` or `devices` that builds on the one of devicekit needs "
            "pytest 9: give it another name"
        )
    return str(request.param)


@pytest.fixture(scope="session")
def device(_devicekit_spec: str) -> "Device":
    """The device that this run of the test is for: a `Device`; the test runs once for each."""
    return devices_of(_devicekit_spec)[0]


@pytest.fixture(scope="session")
def devices(_devicekit_spec: str) -> "list[Device]":
    """All devices of one type, at least two; a type with fewer is skipped."""
    found = devices_of(_devicekit_spec)
    if len(found) < 2:
        pytest.skip(f"needs two devices of one type; {_devicekit_spec} has {len(found)}")
    return found


@pytest.fixture
def simulated_accelerator() -> "Iterator[Simulation]":
    """The simulated accelerator "sim" with two devices, for this test."""
    from devicekit.testing.simulation import simulate

    _skip_if_too_old()
    with simulate(SIMULATED, allow_real=True) as simulation:
        yield simulation


@pytest.fixture
def simulated_cuda() -> "Iterator[Simulation]":
    """Two simulated devices under CUDA's name, for code with `.cuda()` and `device="cuda"`.

    Skips where there is a real CUDA device, which the simulated ones would hide.
    """
    import torch

    from devicekit.testing.simulation import simulate

    _skip_if_too_old()
    if torch.cuda.is_available():
        pytest.skip("there is a real CUDA device, which a simulated one would hide")
    with simulate("cuda") as simulation:
        yield simulation


def _skip_if_too_old() -> None:
    from devicekit.testing.simulation import private

    try:
        private.require()
    except NotImplementedError as error:
        pytest.skip(str(error))


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides every real accelerator from this test, so that fallbacks can be tested anywhere.

    devicekit and torch say that there is none; a tensor can still be put on one by its name.
    """
    import torch

    from devicekit.probe import MASKS, known_types

    # The masks are what devicekit reports as the reason; torch, which may have read them long ago,
    # is told no by hand.
    for mask in MASKS:
        monkeypatch.setenv(mask, "")
    modules = [getattr(torch, type_, None) for type_ in known_types() if type_ != SIMULATED]
    for module in (*modules, torch.accelerator):
        for name, function in _NONE.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, function)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


_NONE = {
    "is_available": lambda: False,
    "device_count": lambda: 0,
    "current_accelerator": lambda check_available=False: None,
}


@pytest.fixture
def fake_nvml() -> "Iterator[FakeNvml]":
    """A stand-in for the `pynvml` module, in place while the test runs."""
    from devicekit.testing.nvml import FakeNvml

    with FakeNvml() as fake:
        yield fake
