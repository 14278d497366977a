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
    result.stdout.fnmatch_lines(
        ["tests run on: cpu 3, sim 2 (1 skipped)", "skipped on sim: 1: not here"]
    )


def test_requirements(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        requires = pytest.mark.devicekit_requires

        @requires("cuda")
        def test_cuda(device): pass

        @requires("gpu")
        def test_gpu(device): assert device == "sim:0"

        @requires("sim", count=2)
        def test_two(device): assert device == "sim:0"

        @requires("sim", count=3)
        def test_three(device): pass

        @requires("sim", capability=(8, 0))
        def test_new(device): pass

        @requires("sim", memory="1 GiB")
        def test_large(device): pass

        @requires("sim", memory="1 TiB")
        def test_too_large(device): pass

        @requires("cuda")
        def test_without_a_device(): pass

        @requires("gpu")
        def test_any_gpu_without_a_device(): pass
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=cpu,sim", "-rsp")
    result.assert_outcomes(passed=4, skipped=12)
    result.stdout.fnmatch_lines_random(
        [
            "*PASSED *::test_gpu?sim?",
            "*PASSED *::test_two?sim?",
            "*PASSED *::test_new?sim?",
            "*PASSED *::test_large?sim?",
            "skipped on cpu: 1: needs cuda, runs on cpu",
            "skipped on cpu: 1: needs gpu, runs on cpu",
            "skipped on sim: 1: needs cuda, runs on sim",
            "skipped on sim: 1: needs 3 devices of type sim, found 2",
            "skipped on sim: 1: needs 1024.0 GiB of memory, found 16.0 GiB",
            "SKIPPED*: needs cuda: ?*",
            "SKIPPED*: needs gpu, runs on cpu",
        ]
    )


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
        ("devicekit_check(momery=True)", "unknown argument `momery`*"),
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
