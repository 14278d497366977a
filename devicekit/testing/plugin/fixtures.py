"""The fixtures that tests ask for by name."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from devicekit.testing.plugin.selection import SIMULATED, worker_index

if TYPE_CHECKING:
    from devicekit.device import Device
    from devicekit.testing.nvml import FakeNvml
    from devicekit.testing.simulation import Simulation


# Session scope, so that fixtures of any scope can build on it and hypothesis does not object. What
# must happen around each single test is done by the hooks in running.py.
@pytest.fixture(scope="session")
def _devicekit_spec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def device(_devicekit_spec: str) -> "Device":
    """The device that this run of the test is for: a `Device`; the test runs once for each."""
    return _on_this_worker(_devicekit_spec)[0]


@pytest.fixture(scope="session")
def devices(_devicekit_spec: str) -> "list[Device]":
    """All devices of one type, at least two; a type with fewer is skipped."""
    found = _on_this_worker(_devicekit_spec)
    if len(found) < 2:
        pytest.skip(f"needs two devices of one type; {_devicekit_spec} has {len(found)}")
    return found


@pytest.fixture
def simulated_accelerator() -> "Iterator[Simulation]":
    """The simulated accelerator "sim" with two devices, for this test."""
    from devicekit.testing.simulation import simulate

    with simulate(SIMULATED, allow_real=True) as simulation:
        yield simulation


@pytest.fixture
def simulated_cuda() -> "Iterator[Simulation]":
    """Two simulated devices under CUDA's name, for code with `.cuda()` and `device="cuda"`."""
    from devicekit.testing.simulation import simulate

    with simulate("cuda") as simulation:
        yield simulation


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides every real accelerator from this test, so that fallbacks can be tested anywhere."""
    import torch

    from devicekit.probe import MASKS

    # The masks are what devicekit reports as the reason; torch, which may have read them long ago,
    # is told no by hand.
    for mask in MASKS:
        monkeypatch.setenv(mask, "")
    for module in (torch.cuda, torch.xpu):
        monkeypatch.setattr(module, "is_available", lambda: False)
        monkeypatch.setattr(module, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 0)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available=False: None
    )


@pytest.fixture
def fake_nvml() -> "Iterator[FakeNvml]":
    """A stand-in for the `pynvml` module, in place while the test runs."""
    from devicekit.testing.nvml import FakeNvml

    with FakeNvml() as fake:
        yield fake


def _on_this_worker(spec: str) -> "list[Device]":
    """The devices of the type of `spec`, this worker's own first."""
    from devicekit.device import Device
    from devicekit.probe import probe

    type_, _, index = spec.partition(":")
    if type_ == "cpu":
        return [Device("cpu")]
    count = probe(type_).count
    first = int(index) if index else worker_index(count)
    order = [(first + offset) % count for offset in range(count)]
    return [Device(f"{type_}:{ordinal}", fallback=None) for ordinal in order]
