"""When copies may still run on return, seen on a device whose copies land late."""

import weakref
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from devicekit import to_device
from devicekit.move.transfer import Transfer
from devicekit.testing import Simulation, simulate


@pytest.fixture
def late() -> Iterator[Simulation]:
    try:
        running = simulate(async_copies=True)
    except NotImplementedError as error:  # torch is too old for the simulation
        pytest.skip(str(error))
    with running:
        yield running


class Copies(torch.overrides.TorchFunctionMode):
    """Records `non_blocking` of each copy."""

    def __init__(self) -> None:
        super().__init__()
        self.asynchronous: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.to and len(args) > 3:
            self.asynchronous.append(args[3])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("wrap", [dict, UserDict], ids=["quick way", "walker"])
@pytest.mark.parametrize(
    ("non_blocking", "expected"),
    [("auto", [True, False]), (False, [False, False]), (True, [True, True])],
)
def test_towards_an_accelerator_from_pinned_memory_only(
    wrap: Any, non_blocking: Any, expected: list[bool], late: Simulation
) -> None:
    data = wrap(pinned=torch.ones(3).pin_memory(), pageable=torch.ones(3) * 2)

    with Copies() as copies:
        moved = to_device(data, "sim:0", non_blocking=non_blocking)

    assert copies.asynchronous == expected
    assert moved["pinned"].cpu().tolist() == [1, 1, 1]
    assert moved["pageable"].cpu().tolist() == [2, 2, 2]


@pytest.mark.parametrize("non_blocking", ["auto", True, False])
def test_R023_towards_the_cpu_the_data_are_there_on_return(
    non_blocking: Any, late: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = torch.get_device_module("sim")
    waits = 0
    stream_type = type(module.current_stream("sim:0"))
    plain = stream_type.synchronize

    def synchronize(self: Any) -> Any:
        nonlocal waits
        waits += 1
        return plain(self)

    monkeypatch.setattr(stream_type, "synchronize", synchronize)
    data = to_device({"x": torch.arange(3), "y": [torch.ones(2), torch.ones(2) * 5]}, "sim:0")
    waits = 0

    back = to_device(data, "cpu", non_blocking=non_blocking)

    assert back["x"].tolist() == [0, 1, 2]
    assert back["y"][1].tolist() == [5, 5]
    assert waits == (0 if non_blocking is False else 1)
    waits = 0
    assert to_device(back, "cpu") is back
    assert waits == 0


def test_modules_and_parameters_are_there_on_return(late: Simulation) -> None:
    module = to_device(torch.nn.Linear(2, 2, bias=False), "sim:0")
    with torch.no_grad():
        module.weight.fill_(7)
    data = {"m": module, "p": torch.nn.Parameter(torch.ones(1, device="sim:1"))}

    back = to_device(data, "cpu")

    assert back["m"].weight.tolist() == [[7, 7], [7, 7]]
    assert back["p"].tolist() == [1]


def test_the_wait_happens_when_an_error_ends_the_move(late: Simulation) -> None:
    """A copy under way into memory that nobody holds any more would be one into foreign memory."""
    data = [torch.ones(3, device="sim:0"), torch.ones(1, device="meta")]
    with pytest.raises(NotImplementedError):
        to_device(data, "cpu")
    assert to_device(data[0], "cpu").tolist() == [1, 1, 1]


def test_from_one_accelerator_to_another(late: Simulation) -> None:
    data = to_device({"x": torch.arange(3)}, "sim:0")
    assert to_device(to_device(data, "sim:1"), "cpu")["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("asked", ["auto", True])
def test_R021_R022_never_asynchronous_to_mps(asked: Any) -> None:
    class Recorder(Tensor):
        calls: list[Any] = []  # noqa: RUF012

        def to(self, *args: Any) -> Any:  # type: ignore[override]
            Recorder.calls.append(args[2])
            return self

    Transfer(torch.device("mps", 0), non_blocking=asked).tensor(torch.ones(1).as_subclass(Recorder))
    assert Recorder.calls == [False]


def test_sources_are_released_when_the_copy_is_done(late: Simulation) -> None:
    source = torch.ones(3).pin_memory()
    alive = weakref.ref(source)
    moved = to_device([source], "sim:0")
    del source
    assert moved[0].cpu().tolist() == [1, 1, 1]
    assert alive() is None


class Scaled:
    """Looks at its tensor when it is made."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.largest = x.max()


def test_objects_are_made_when_their_tensors_are_there(late: Simulation) -> None:
    data = [Scaled(torch.tensor([1.0, 3.0], device="sim"))]
    to_device.register(Scaled, lambda s: {".x": s.x}, lambda s, new: Scaled(new[".x"]))
    try:
        assert to_device(data, "cpu")[0].largest.item() == 3
    finally:
        to_device.unregister(Scaled)
