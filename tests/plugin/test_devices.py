"""Which devices a test runs on, and what the run says about it."""

import pytest


def test_a_bug_is_red_on_the_simulation_and_green_on_the_cpu(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-v")
    result.stdout.fnmatch_lines_random(
        [
            "devicekit *: devices auto (default)",
            "*::test_good?cpu? PASSED*",
            "*::test_bug?cpu? PASSED*",
            "*::test_pair?cpu? SKIPPED*",
            "*::test_good?sim? PASSED*",
            "*::test_bug?sim? FAILED*",
            "*::test_pair?sim? PASSED*",
            "*::test_plain PASSED*",
            "tests run on: cpu 2 (1 skipped), sim 3",
            "not exercised: cuda: *",
        ]
    )
    result.assert_outcomes(passed=5, failed=1, skipped=1)


def test_a_failure_is_explained(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-k", "bug and sim")
    result.stdout.fnmatch_lines(
        ["*- devicekit -*", "*expected all tensors to be on the same device*", "*torch.ones(2*"]
    )


@pytest.mark.parametrize("how", ["option", "ini", "variable"])
def test_devices_can_be_named(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    arguments = []
    if how == "option":
        arguments.append("--devicekit-devices=cpu")
    if how in ("option", "ini"):
        suite.makeini(f"[pytest]\ndevicekit_devices = {'cpu' if how == 'ini' else 'nonsense'}")
    monkeypatch.setenv("DEVICEKIT_TEST_DEVICES", "cpu" if how == "variable" else "nonsense")
    result = suite.runpytest_inprocess(*arguments)
    result.stdout.fnmatch_lines(["devicekit *: devices cpu (*)", "tests run on: cpu 2 (1 skipped)"])
    result.assert_outcomes(passed=3, skipped=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("cudo", "*--devicekit-devices: 'cudo' is not a device: *cuda*"),
        ("cuda", "*--devicekit-devices: 'cuda' cannot be used here: *CPU-only build*"),
        (",", "*--devicekit-devices: no device is named in ','*"),
    ],
)
def test_a_bad_name_stops_the_run(suite: pytest.Pytester, value: str, message: str) -> None:
    result = suite.runpytest_inprocess(f"--devicekit-devices={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_what_is_required_and_missing_stops_the_run(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess("--devicekit-require=cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--devicekit-require: 'cuda' is missing: *CPU-only build*"])
