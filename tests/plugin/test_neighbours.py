"""The plugin beside others: it loads no torch, and a project's own names win."""

import subprocess
import sys

import pytest

STRICT = ("-W", "error", "--strict-markers", "--strict-config")
SAYS_WHETHER_TORCH_IS_LOADED = """
    import sys

    def pytest_sessionfinish(session):
        print("torch imported:", "torch" in sys.modules)
    """


def test_torch_is_not_imported_without_a_device_test(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(SAYS_WHETHER_TORCH_IS_LOADED)
    pytester.makepyfile("def test_plain(): pass")
    result = pytester.runpytest_subprocess("-s", "--devicekit-devices=auto,sim,cpu")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*torch imported: False*"])
    # Nothing is said where there was nothing to say.
    result.stdout.no_fnmatch_line("*- devicekit -*")


def test_in_a_fresh_process_under_strict_settings(pytester: pytest.Pytester) -> None:
    # Fixtures of any scope and hypothesis build on the device, and a first device test imports
    # torch and starts the simulation without any warning.
    pytester.makeconftest(SAYS_WHETHER_TORCH_IS_LOADED)
    pytester.makepyfile(
        """
        import pytest
        from hypothesis import given, strategies as st

        @pytest.fixture(scope="module")
        def model(device):
            import torch

            return torch.nn.Linear(2, 1).to(device)

        @given(n=st.integers(1, 3))
        def test_model(model, device, n):
            assert model(model.weight.new_ones(n, 2)).shape == (n, 1)

        def test_again(model, device):
            assert model.weight.device == device

        @pytest.mark.devicekit_check(memory=True, sync=True, leftovers=True)
        def test_checked(device): pass
        """
    )
    result = pytester.runpytest_subprocess("-s", *STRICT)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*torch imported: True*", "tests run on: cpu 3, sim 3"])


def test_collecting_needs_no_device(pytester: pytest.Pytester) -> None:
    # R093: on a machine without a GPU all tests are collected, and those that need one are skipped
    # with the reason, which is no failure.
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.devicekit_requires("cuda", count=2)
        def test_two(devices): pass

        def test_any(device): pass
        """
    )
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines_random(["*::test_any?cpu?", "*::test_two?sim?", "*::test_any?sim?"])
    result.stdout.no_fnmatch_line("*- devicekit -*")
    result = pytester.runpytest_inprocess("-rs", "-k", "two")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["SKIPPED*needs cuda, runs on sim"])


def test_fake_tensors_are_not_needed(pytester: pytest.Pytester) -> None:
    # R097: making, moving, mixing and gradients without CUDA, in this process.
    pytester.makepyfile(
        """
        import pytest, torch

        def test_moves(device):
            layer = torch.nn.Linear(2, 1).to(device)
            out = layer(torch.ones(2).to(device)).sum()
            out.backward()
            assert layer.weight.grad.cpu().tolist() == [[1.0, 1.0]]
            if device != "cpu":
                with pytest.raises(RuntimeError, match="same device"):
                    layer(torch.ones(2))
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


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


@pytest.mark.parametrize("arguments", [(), STRICT])
def test_a_project_with_its_own_device_option_and_fixture(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_addoption(parser):
            parser.addoption("--device", default="mine")
            parser.addoption("--dtype", default="float32")

        def pytest_generate_tests(metafunc):
            if "device" in metafunc.fixturenames and "dtype_name" in metafunc.fixturenames:
                metafunc.parametrize("device", ["theirs"])

        @pytest.fixture
        def device(request):
            return request.config.getoption("--device")

        @pytest.fixture
        def dtype_name(): return "float32"
        """
    )
    pytester.makepyfile(
        """
        import pytest

        def test_fixture(device): assert device == "theirs"

        def test_generated(device, dtype_name): assert device == "theirs"

        @pytest.mark.parametrize("device", ["a", "b"])
        def test_own_parameters(device): assert device in "ab"
        """
    )
    result = pytester.runpytest_inprocess("--device", "theirs", *arguments)
    result.assert_outcomes(passed=4)
    result.stdout.no_fnmatch_line("*- devicekit -*")


def test_a_fixture_of_the_project_may_build_on_ours(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def device(device): return device.torch
        """
    )
    pytester.makepyfile("def test_kind(device): assert device.type in ('cpu', 'sim')")
    result = pytester.runpytest_inprocess()
    if pytest.version_tuple < (9,):
        result.stdout.fnmatch_lines(["E*UsageError: a fixture named `device`*needs pytest 9*"])
        return
    result.assert_outcomes(passed=2)


def test_the_plugin_can_be_switched_off(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_device(device): pass")
    result = pytester.runpytest_subprocess("-p", "no:devicekit")
    result.stdout.fnmatch_lines(["*fixture 'device' not found*"])


@pytest.mark.slow
def test_workers_of_xdist_count_and_take_their_own_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest, torch

        environment = dict(os.environ)

        @pytest.mark.parametrize("n", range(4))
        def test_index(device, n):
            worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
            assert device == "cpu" or device.index == worker % 2
            # Without an index it is the same one.
            assert torch.ones(1, device=device.type).device == device
            changed = {k for k, v in os.environ.items() if environment.get(k) != v}
            assert changed <= {"PYTEST_CURRENT_TEST"}

        @pytest.mark.devicekit_requires("cuda")
        def test_cuda(device): pass
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "--devicekit-devices=cpu,sim")
    result.assert_outcomes(passed=8, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "tests run on: cpu 4 (1 skipped), sim 4 (1 skipped)",
            "skipped on cpu: 1: needs cuda, runs on cpu",
            "not exercised: cuda, mps, xpu: *",
        ]
    )


@pytest.mark.slow
def test_mistakes_stop_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.devicekit_skip('cudo', reason='x')\ndef test_one(device): pass"
    )
    # A bad name before any worker is started, a bad marker when it is collected.
    result = pytester.runpytest_subprocess("-n", "2", "--devicekit-devices=cudo")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'cudo' is not a device*"])
    result.stdout.no_fnmatch_line("*gw0*")
    result = pytester.runpytest_subprocess("-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: *marker devicekit_skip: 'cudo' is no device type*"])
