"""Which code for NVIDIA GPUs runs on which of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devicekit.archs import arch_runs


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 9), True),
        ("sm_86", (8, 9), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90", (12, 0), False),
        ("compute_90", (12, 0), True),
        ("compute_90", (8, 9), False),
        ("sm_90a", (9, 0), True),
        ("sm_90a", (9, 1), False),
        ("compute_90a", (10, 0), False),
        ("sm_100f", (10, 0), True),
        ("sm_100f", (10, 3), True),
        ("sm_100f", (12, 0), False),
        ("compute_100f", (10, 3), True),
        ("compute_100f", (12, 0), False),
        ("sm_120", (12, 1), True),
        ("sm_80", (8, 7), False),
        ("sm_86", (8, 7), False),
        ("sm_87", (8, 7), True),
        ("sm_87", (8, 9), False),
        ("sm_72", (7, 2), True),
        ("sm_70", (7, 2), False),
        ("sm_72", (7, 5), False),
        ("sm_53", (6, 0), False),
        ("sm_60", (6, 2), False),
        ("sm_110", (11, 0), True),
        ("sm_101", (11, 0), True),
        ("sm_110", (10, 1), True),
        ("sm_100", (10, 1), False),
        ("sm_130", (13, 0), True),
        ("sm_130", (13, 1), None),
        ("gfx90a", (9, 0), None),
        ("sm_80x", (8, 0), None),
    ],
)
def test_arch_runs(arch, capability, runs):
    assert arch_runs(arch, capability) is runs


def test_arch_runs_agrees_with_torchs_own_table():
    """Newer torch has a table of its own; ours is not read from it, and must say the same."""
    cuda = pytest.importorskip("torch.cuda")
    table = getattr(cuda, "DEVICE_REQUIREMENT", None)
    if table is None:
        pytest.skip("this torch has no such table")
    known = [*table, 103, 121]
    for code, gpu in itertools.product(table, known):
        if (code, gpu) == (110, 101):
            continue  # torch knows since 2.14 that 10.1 was renamed to 11.0
        theirs = cuda._code_compatible_with_device(gpu, code)
        assert arch_runs(f"sm_{code}", divmod(gpu, 10)) is theirs, (code, gpu)


CAPABILITIES = st.tuples(st.integers(0, 20), st.integers(0, 9))


@given(st.text(max_size=12), CAPABILITIES)
def test_arch_runs_never_fails(arch, capability):
    assert arch_runs(arch, capability) in (True, False, None)


@given(CAPABILITIES, CAPABILITIES)
def test_ptx_runs_on_all_that_is_newer(built, capability):
    major, minor = built
    assert arch_runs(f"compute_{major}{minor}", capability) is (built <= capability)


@given(CAPABILITIES)
def test_code_runs_on_the_gpu_it_was_built_for(built):
    major, minor = built
    assert arch_runs(f"sm_{major}{minor}a", built) is True


@pytest.mark.parametrize("arch", ["sm_" + "9" * 5000, "compute_" + "9" * 5000 + "a"])
def test_no_rule_covers_a_number_without_end(arch):
    assert arch_runs(arch, (9, 0)) is None
