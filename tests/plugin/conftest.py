"""Set-up for tests that run pytest on small suites of their own."""

import pytest


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small suites must not see what selects the devices of this one."""
    for name in ("DEVICEKIT_TEST_DEVICES", "PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


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
