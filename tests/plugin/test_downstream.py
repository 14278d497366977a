"""The sample project in docs/examples/downstream: its bug is red on `sim`, green on `cpu`."""

import shutil
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "docs" / "examples" / "downstream"


def test_the_planted_bug_and_its_mending(pytester: pytest.Pytester) -> None:
    for name in ("pyproject.toml", "tinyattention", "tests"):
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, pytester.path / name)
    # On the CPU, where most projects test, nothing is wrong.
    result = pytester.runpytest_inprocess("--devicekit-devices=cpu")
    result.assert_outcomes(passed=3)

    result = pytester.runpytest_inprocess("-v")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*::test_looks_back_only?cpu? PASSED*",
            "*::test_looks_back_only?sim? FAILED*",
            "*- devicekit -*",
            "*expected all tensors to be on the same device, but found sim:0 and cpu*",
            "*scores + self.bias(tokens.shape[[]1])*",
            "*fix: *",
            "tests run on: cpu 2, sim 2",
        ]
    )

    library = pytester.path / "tinyattention" / "__init__.py"
    mended = library.read_text().replace(
        "arange(length)", "arange(length, device=self.project.weight.device)"
    )
    library.write_text(mended)
    pytester.runpytest_inprocess().assert_outcomes(passed=5)
