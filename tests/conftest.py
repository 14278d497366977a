"""Fixtures that the whole suite shares."""

from collections.abc import Iterator

import pytest

from devicekit.testing import Simulation, simulate


@pytest.fixture
def simulated_accelerator() -> Iterator[Simulation]:
    """Two simulated devices, `sim:0` and `sim:1`."""
    with simulate() as running:
        yield running
