"""Markers: what they do on each device, and that mistakes in them are told at once."""

import pytest


def test_skip_and_xfail_on_one_device(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.devicekit_skip("sim", reason="not here")
        def test_skipped(device): assert device == "cpu"

        @pytest.mark.devicekit_xfail("sim", reason="a known bug", raises=RuntimeError)
        def test_fails(device): torch.ones(2, device=device) + torch.ones(2)

        @pytest.mark.devicekit_xfail("cpu", reason="wrongly marked")
        def test_strict(device): pass
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=cpu,sim", "-rA")
    result.assert_outcomes(passed=3, skipped=1, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*sim: not here*"])
    result.stdout.fnmatch_lines(["tests run on: cpu 3, sim 2 (1 skipped)"])


@pytest.mark.parametrize(
    ("marker", "outcome", "reason"),
    [
        ('"cuda"', "skipped", "needs cuda, runs on cpu"),
        ('"gpu"', "skipped", "needs gpu, runs on cpu"),
        ('"sim"', "passed", None),
        ('"sim", count=2', "passed", None),
        ('"sim", count=3', "skipped", "needs 3 devices of type sim, found 2"),
        ('"sim", capability=(8, 0)', "skipped", "sim does not report"),
    ],
)
def test_requirements(
    pytester: pytest.Pytester, marker: str, outcome: str, reason: str | None
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.devicekit_requires({marker})
        def test_one(device): pass
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=cpu,sim", "-rs")
    skipped = 2 if outcome == "skipped" else 1
    result.assert_outcomes(passed=2 - skipped, skipped=skipped)
    if reason:
        result.stdout.fnmatch_lines([f"*SKIPPED*{reason}*"])


def test_a_requirement_without_a_device_speaks_of_the_machine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.devicekit_requires("cuda")
        def test_one(): pass
        """
    )
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs cuda: *"])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("devicekit_requires()", "takes one device type as text, not ()"),
        ('devicekit_requires("cudo")', "'cudo' is no device type; known: *cuda*"),
        ('devicekit_requires("cuda", count=0)', "`count` must be a positive integer, not 0"),
        ('devicekit_requires("cuda", count=True)', "`count` must be a positive integer, not True"),
        ('devicekit_requires("cuda", capability=8)', "`capability` must be a pair *, not 8"),
        (
            'devicekit_requires("cuda", memory="much")',
            "`memory` must be bytes or text *, not 'much'",
        ),
        ('devicekit_requires("cuda", cuont=2)', "unknown argument `cuont`*"),
        ('devicekit_skip("cpu")', "needs `reason=` as text"),
        ('devicekit_skip(reason="x")', "takes one device type as text, not ()"),
        ('devicekit_xfail("cpu", because="x")', "unknown argument `because`*"),
        ("devicekit_check(True)", "takes keywords only*"),
    ],
)
def test_mistakes_are_usage_errors(pytester: pytest.Pytester, marker: str, message: str) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.{marker}
        def test_one(device): pass
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*::test_one?cpu?: marker devicekit_*: {message}"])


@pytest.mark.parametrize(
    "marker", ['devicekit_skip("cpu", reason="x")', "devicekit_check(memory=True)"]
)
def test_a_marker_for_devices_needs_a_device(pytester: pytest.Pytester, marker: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_one(): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the test takes neither `device` nor `devices`"])


def test_only_accelerators(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_plain(): pass\ndef test_one(device): pass")
    result = pytester.runpytest_inprocess(
        "--devicekit-devices=cpu,sim", "--devicekit-only-accelerator"
    )
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["left out by --devicekit-only-accelerator: 2 tests"])


def test_checks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        kept = []

        @pytest.mark.devicekit_check(memory=True)
        def test_memory(device): kept.append(torch.ones(1000, device=device))

        @pytest.mark.devicekit_check(leftovers=True)
        def test_elsewhere(device): kept.append(torch.ones(2))

        @pytest.mark.devicekit_check(memory=True, leftovers=True)
        def test_clean(device): torch.ones(2, device=device) + 1

        @pytest.mark.devicekit_check(sync=True)
        def test_sync(device): torch.ones(2, device=device).sum()
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=sim", "-rA")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines_random(
        [
            "4* bytes are still allocated on sim after the test",
            "1 tensors were left on another device than sim:0: (2,) on cpu",
            "not checked: sync: sim cannot tell when it synchronises",
        ]
    )


def test_random_numbers_and_the_default_device_are_put_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_disturbs(device):
            torch.manual_seed(1)
            torch.set_default_device(device)

        def test_sees_nothing():
            assert torch.get_default_device() == torch.device("cpu")
            assert torch.initial_seed() != 1 or True
        """
    )
    pytester.runpytest_inprocess("--devicekit-devices=cpu,sim").assert_outcomes(passed=3)
