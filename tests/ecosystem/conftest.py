"""The machines that the examples of docs/interop.md run on."""

from collections.abc import Iterator

import pytest

from devicekit.testing import simulate


@pytest.fixture(params=["cpu", "sim", "cuda"])
def machine(request: pytest.FixtureRequest, accelerate_chooses_anew: None) -> Iterator[str]:
    """A machine without an accelerator, or with two simulated ones of either name."""
    if request.param == "cpu":
        yield "cpu"
        return
    with simulate(request.param):
        yield request.param


@pytest.fixture
def accelerate_chooses_anew() -> Iterator[None]:
    """Lets the next `Accelerator()` choose its device: accelerate keeps it for the process."""
    try:
        from accelerate.state import AcceleratorState
    except ModuleNotFoundError:
        yield
        return
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
