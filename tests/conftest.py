"""Skips what needs the simulated accelerator where this torch cannot have it."""

import pytest

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
