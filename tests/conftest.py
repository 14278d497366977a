"""What several test files share; skips what needs a simulation where this torch cannot have it."""

import pytest

from devicekit.env import collect
from devicekit.monitor import processes, visible
from devicekit.testing.simulation import private

SIMULATED = {"plugin", "simulate"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests in the folders that are about the simulation."""
    try:
        private.require()
    except NotImplementedError as error:
        for item in items:
            if SIMULATED & set(item.path.parts):
                item.add_marker(pytest.mark.skip(reason=str(error)))


@pytest.fixture
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that matters, the host's process ids, and no CUDA driver to ask."""
    for name in collect.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(visible, "driver_order", lambda: None)
    monkeypatch.setattr(processes, "_in_container", lambda: False)
