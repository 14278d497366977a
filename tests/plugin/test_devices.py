"""Which devices a test runs on, and what the run says about it."""

import pytest


def test_a_bug_is_red_on_the_simulation_and_green_on_the_cpu_and_explained(
    suite: pytest.Pytester,
) -> None:
    # R096: a device bug shows on a machine that has only a CPU.
    result = suite.runpytest_inprocess("-v")
    result.stdout.fnmatch_lines_random(
        [
            "devicekit *: devices auto (default)",
            "*::test_good?cpu? PASSED*",
            "*::test_bug?cpu? PASSED*",
            "*::test_good?sim? PASSED*",
            "*::test_bug?sim? FAILED*",
            "*::test_pair?sim? PASSED*",
            "*::test_plain PASSED*",
            "tests run on: cpu 2, sim 3",
            "not exercised: cuda*: ?*",
        ]
    )
    # The explanation of the failure.
    result.stdout.fnmatch_lines(
        ["*- devicekit -*", "*expected all tensors to be on the same device*", "*torch.ones(2*"]
    )
    result.assert_outcomes(passed=5, failed=1)


def test_an_explanation_is_found_under_the_words_of_a_library(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_wrapped(device):
            try:
                torch.ones(2, device=device) + torch.ones(2)
            except RuntimeError as error:
                raise ValueError("something went wrong") from error

        def test_another_mistake(device):
            raise ValueError("something else")
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=sim", "-k", "wrapped")
    result.stdout.fnmatch_lines(["*- devicekit -*", "*but found sim:0 and cpu*", "*torch.ones(2*"])
    result = pytester.runpytest_inprocess("--devicekit-devices=sim", "-k", "another")
    result.stdout.no_fnmatch_line("*but found*")


@pytest.mark.parametrize("how", ["option", "ini", "variable"])
def test_devices_can_be_named(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    # R094: the devices are a matter of the command line, and the ids can be read.
    arguments = ["-v"]
    if how == "option":
        arguments.append("--devicekit-devices=cpu")
    if how in ("option", "ini"):
        suite.makeini(f"[pytest]\ndevicekit_devices = {'cpu' if how == 'ini' else 'nonsense'}")
    monkeypatch.setenv("DEVICEKIT_TEST_DEVICES", "cpu" if how == "variable" else "nonsense")
    result = suite.runpytest_inprocess(*arguments)
    result.stdout.fnmatch_lines(
        [
            "devicekit *: devices cpu (*)",
            "*::test_good?cpu? PASSED*",
            "tests run on: cpu 2 (1 skipped)",
            "skipped on cpu: 1: needs two devices of one type; cpu has 1",
            "not exercised: sim: not selected",
        ]
    )
    result.assert_outcomes(passed=3, skipped=1)


def test_names_have_one_form_and_an_index_selects_a_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_index(device, request):
            assert device.index == (None if device == "cpu" else 1)
            # The current device is the test's own.
            assert device == "cpu" or torch.ones(1, device="sim").device == device

        def test_all(devices):
            assert devices == ["sim:1", "sim:0"]
        """
    )
    result = pytester.runpytest_inprocess(
        "-v", "--devicekit-devices=sim:1,cpu:0", "--devicekit-devices=cpu"
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        ["*devices sim:1,cpu:0,cpu (--devicekit-devices)", "tests run on: sim:1 2, cpu 1"]
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cudo", "*--devicekit-devices: 'cudo' is not a device: *cuda*; auto and all are groups*"),
        ("cuda", "*--devicekit-devices: 'cuda' cannot be used here (*): ?*"),
        ("sim:2", "*--devicekit-devices: 'sim:2' is not a device: there are sim:0 and sim:1"),
        (",", "*--devicekit-devices: no device is named in ','*"),
    ],
)
def test_a_bad_name_stops_the_run(suite: pytest.Pytester, value: str, message: str) -> None:
    result = suite.runpytest_inprocess(f"--devicekit-devices={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cuda", "'cuda' is missing: ?*"),
        ("cpu,cuda:2", "'cuda:2' is missing: ?*"),
        ("gpu", "'gpu' is missing: ?*"),
        ("sim:3", "'sim:3' is missing: 3 needed, 2 found"),
        ("cudo", "'cudo' is not TYPE or TYPE:COUNT; known types: cuda, *"),
        ("cuda:0", "'cuda:0' is not TYPE or TYPE:COUNT; *"),
    ],
)
def test_what_is_required_and_missing_stops_the_run(
    suite: pytest.Pytester, value: str, message: str
) -> None:
    result = suite.runpytest_inprocess(f"--devicekit-require={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--devicekit-require: {message}"])


def test_what_is_required_and_there_lets_the_run_start(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("--devicekit-require=sim:2,cpu", "-k", "plain")
    result.assert_outcomes(passed=1, deselected=5)


def test_a_torch_that_cannot_simulate(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devicekit.testing.simulation.private.MISSING", ["torch._C._acc"])
    result = suite.runpytest_inprocess()
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines(["tests run on: cpu 2 (1 skipped)", "not exercised: sim: *2.10*"])
    # Asked for by name, it is an error like every missing device.
    result = suite.runpytest_inprocess("--devicekit-devices=cpu,sim")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--devicekit-devices: 'sim' cannot be used here: *2.10*"])


def test_only_accelerators(pytester: pytest.Pytester) -> None:
    # R094: a machine with a GPU need not run the tests that others can run.
    pytester.makepyfile(
        """
        import pytest

        def test_plain(): pass
        def test_one(device): pass

        @pytest.mark.devicekit_requires("cuda")
        def test_needs(): pass
        """
    )
    result = pytester.runpytest_inprocess(
        "--devicekit-devices=cpu,sim", "--devicekit-only-accelerator"
    )
    result.assert_outcomes(passed=1, skipped=1, deselected=2)
    result.stdout.fnmatch_lines(["left out by --devicekit-only-accelerator: 2 tests"])
