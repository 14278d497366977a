"""Set-up for tests that run pytest on small suites of their own."""

import sys
from pathlib import Path

import pytest
from _pytest.pytester import SysModulesSnapshot


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small suites must not see what selects the devices of this one."""
    for name in (
        "DEVICEKIT_DEVICE",
        "DEVICEKIT_TEST_DEVICES",
        "PYTEST_ADDOPTS",
        "PYTEST_XDIST_WORKER",
        "PYTEST_XDIST_WORKER_COUNT",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _keep_modules(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keeps what a run in this process imports: torch's modules register kernels, only once.

    It must come before `pytester`, which remembers the modules when it is made.
    """
    folder = tmp_path_factory.getbasetemp()

    class Keeping(SysModulesSnapshot):
        def __init__(self, preserve: object) -> None:
            super().__init__(preserve=lambda name: not _is_below(folder, name))

    monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot", Keeping)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may be rewritten within a second


def _is_below(folder: Path, name: str) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    # The outer run has a module of this name too, which must come back.
    return name == "conftest" or (file is not None and folder in Path(file).parents)


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A suite of four tests: with a device, with a device bug, with several, and with none."""
    pytester.makepyfile(
        """
        import torch

        def test_good(device):
            x = torch.ones(2, device=device)
            assert (x + x.new_ones(2)).device == device

        def test_bug(device):
            x = torch.ones(2, device=device)
            assert (x + torch.ones(2)).sum() == 4

        def test_pair(devices):
            assert len(devices) == 2

        def test_plain():
            pass
        """
    )
    return pytester
