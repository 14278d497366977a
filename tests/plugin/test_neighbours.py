"""The plugin beside others: it loads no torch, and a project's own names win."""

import subprocess
import sys

import pytest

WITHOUT_DEVICE = "def test_plain(): pass"
WITH_DEVICE = "def test_device(device): pass"


@pytest.mark.parametrize(("test", "imported"), [(WITHOUT_DEVICE, False), (WITH_DEVICE, True)])
def test_torch_is_imported_only_for_a_device_test(
    pytester: pytest.Pytester, test: str, imported: bool
) -> None:
    pytester.makeconftest(
        "import sys\n"
        "def pytest_sessionfinish(session):\n"
        "    print('torch imported:', 'torch' in sys.modules)\n"
    )
    pytester.makepyfile(test)
    result = pytester.runpytest_subprocess("-s")
    result.stdout.fnmatch_lines([f"*torch imported: {imported}*"])


@pytest.mark.slow
def test_loading_adds_under_20_ms() -> None:
    program = (
        "import time, _pytest.config, pytest\n"
        "start = time.process_time()\n"
        "import devicekit.testing.plugin\n"
        "print(time.process_time() - start)\n"
    )
    seconds = [
        float(subprocess.check_output([sys.executable, "-c", program], text=True)) for _ in range(5)
    ]
    assert min(seconds) < 0.020


@pytest.mark.parametrize("arguments", [(), ("-W", "error", "--strict-markers", "--strict-config")])
def test_a_project_with_its_own_device_option_and_fixture(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_addoption(parser):
            parser.addoption("--device", default="mine")
            parser.addoption("--dtype", default="float32")

        @pytest.fixture
        def device(request):
            return request.config.getoption("--device")
        """
    )
    pytester.makepyfile("def test_theirs(device): assert device == 'theirs'")
    result = pytester.runpytest_subprocess("--device", "theirs", *arguments)
    result.assert_outcomes(passed=1)


def test_a_device_that_the_test_parametrises_itself(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("device", ["a", "b"])
        def test_own(device): assert device in "ab"
        """
    )
    pytester.runpytest_subprocess("--devicekit-devices=cpu,sim").assert_outcomes(passed=2)


def test_the_plugin_can_be_switched_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WITH_DEVICE)
    result = pytester.runpytest_subprocess("-p", "no:devicekit")
    result.stdout.fnmatch_lines(["*fixture 'device' not found*"])


def test_fixtures_of_any_scope_and_hypothesis_build_on_the_device(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest, torch
        from hypothesis import given, strategies as st

        @pytest.fixture(scope="module")
        def model(device):
            return torch.nn.Linear(2, 1).to(device)

        @given(n=st.integers(1, 3))
        def test_model(model, device, n):
            assert model(torch.ones(n, 2, device=device)).shape == (n, 1)

        def test_again(model, device):
            assert model.weight.device == device
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "--devicekit-devices=cpu,sim")
    result.assert_outcomes(passed=4)


@pytest.mark.slow
def test_workers_of_xdist_count_and_take_their_own_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest, torch

        @pytest.mark.parametrize("n", range(4))
        def test_index(device, n):
            worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
            assert device == "cpu" or device.index == worker % 2
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "--devicekit-devices=cpu,sim")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(["tests run on: cpu 4, sim 4"])


@pytest.mark.slow
def test_a_bad_name_stops_xdist_before_its_workers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WITH_DEVICE)
    result = pytester.runpytest_subprocess("-n", "2", "--devicekit-devices=cudo")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'cudo' is not a device*"])
