"""Failures inside an installed library: its own error, its frames, and the user's statement."""

import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from devicekit import DeviceMismatchError, audit, explain, guard
from devicekit.testing import Simulation

LIBRARY = """
import torch
from torch import nn


def step(model, *args, **kwargs):
    return run(model, args, kwargs)


def run(model, args, kwargs):
    return model(*args, **kwargs)


def multiplied(args):
    inputs = args
    return inputs[0] * inputs[1]


def wrapped(function, *args):
    try:
        return function(*args)
    except RuntimeError as error:
        raise RuntimeError("the step failed") from error


def wrapped_as_own(function, *args):
    try:
        return function(*args)
    except RuntimeError as error:
        raise LookupError("the step failed") from error


def hidden(function, *args):
    try:
        return function(*args)
    except RuntimeError:
        raise RuntimeError("Encountered different devices")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight
"""


@pytest.fixture
def library(tmp_path: Path) -> types.ModuleType:
    """A library as if it were installed."""
    path = tmp_path / "site-packages" / "library.py"
    path.parent.mkdir()
    path.write_text(LIBRARY)
    module = types.ModuleType("library")
    module.__file__ = str(path)
    exec(compile(LIBRARY, str(path), "exec"), module.__dict__)
    return module


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def explained(function: Callable[..., object], *args: object) -> str:
    try:
        function(*args)
    except Exception as error:
        return explain(error) or ""
    raise AssertionError("nothing was raised")


def line_of(code: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.strip().endswith(code))


# The error of a library


@pytest.mark.parametrize("wrapper", ["wrapped", "wrapped_as_own"])
def test_the_cause_of_a_librarys_error_is_explained(
    wrapper: str, library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    text = explained(getattr(library, wrapper), add, torch.ones(3, device="sim"), torch.ones(3))
    assert "return x + y" in text
    assert "cpu    y " in text


def test_a_guard_explains_the_cause_and_keeps_both(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    with pytest.raises(DeviceMismatchError, match="return x \\+ y") as caught:
        guard(lambda: library.wrapped(add, torch.ones(3, device="sim"), torch.ones(3)))()
    assert str(caught.value.__cause__) == "the step failed"
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is not None


def test_the_type_of_a_librarys_own_error_is_kept(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    step = guard(lambda: library.wrapped_as_own(add, torch.ones(3, device="sim"), torch.ones(3)))
    with pytest.raises(LookupError, match="the step failed"):
        step()


def test_what_the_user_raised_from_it_is_left_alone(simulated_accelerator: Simulation) -> None:
    def mine() -> None:
        try:
            add(torch.ones(3, device="sim"), torch.ones(3))
        except RuntimeError as error:
            raise RuntimeError("Encountered different devices") from error

    assert explained(mine) == ""
    with pytest.raises(RuntimeError, match="Encountered") as caught:
        guard(mine)()
    assert type(caught.value) is RuntimeError


def test_only_the_stated_cause_is_followed(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    assert explained(library.hidden, add, torch.ones(3, device="sim"), torch.ones(3)) == ""


def test_a_cause_about_something_else(library: types.ModuleType) -> None:
    assert explained(library.wrapped, add, torch.ones(3), torch.ones(2)) == ""


# The statement of the user


def test_the_statement_and_the_fix_are_the_users(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    def use() -> None:
        model, batch = library.Layer().to("sim"), torch.ones(3)
        library.step(model, batch)

    text = explained(use)
    assert f"line {line_of('library.step(model, batch)')}, in use" in text
    assert "sim:0  model " in text
    assert "cpu    batch " in text
    assert "fix: batch = " in text or "batch = torch.ones(3, device=" in text
    assert "args" not in text
    assert "library.py" not in text


def test_a_fix_for_an_argument_passes_over_the_library(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    def use(batch: Tensor) -> None:
        model = Net().to("sim")
        library.step(model, batch)

    text = explained(lambda: use(torch.ones(3)))
    assert "return x * self.scale" in text
    assert "`batch` of " in text
    assert "args" not in text
    assert "library.py" not in text


def test_a_guarded_model_that_a_library_calls(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    model, batch = guard(Net().to("sim")), torch.ones(3)
    with pytest.raises(DeviceMismatchError) as caught:
        library.step(model, batch)
    assert 'fix: batch = batch.to("sim:0")' in str(caught.value)


def test_without_a_statement_of_the_user_the_library_is_shown(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    def use(hold: Callable[[], tuple[Tensor, ...]]) -> None:
        library.multiplied(hold())

    text = explained(use, lambda: (torch.ones(3, device="sim"), torch.ones(3)))
    assert "library.py" in text
    assert "inputs[0] * inputs[1]" in text


def test_a_part_of_a_model_that_is_off_is_named_in_its_layer(
    library: types.ModuleType, simulated_accelerator: Simulation
) -> None:
    model = nn.Sequential(nn.Linear(3, 3), library.Layer()).to("sim")
    model[1].cpu()
    batch = torch.ones(3, device="sim")
    text = explained(lambda: library.step(model, batch))
    assert "self.weight" in text
    assert 'model.to("sim:0")' in text


# One line


def test_a_statement_behind_the_head_of_a_block(simulated_accelerator: Simulation) -> None:
    def use() -> None:
        x = torch.ones(3, device="sim")
        # fmt: off
        if True: torch.add(x, torch.ones(3))  # noqa: E701
        # fmt: on

    text = explained(guard(use))
    assert "    torch.add(x, torch.ones(3))" in text
    assert "fix: torch.add(x, torch.ones(3, device=" in text
    assert "if True" not in text


# forward on the instance


def test_a_forward_on_the_instance_has_the_name_of_the_class(
    simulated_accelerator: Simulation,
) -> None:
    model = Net().to("sim")
    old = model.forward
    model.forward = lambda x, y=None: old(x)  # type: ignore[method-assign, assignment, misc]
    guard(model)
    with pytest.raises(DeviceMismatchError, match=r"^Net\.forward: "):
        model(torch.ones(3))
    with pytest.raises(DeviceMismatchError, match=r"^Net\.forward: "):
        model(torch.ones(3), torch.ones(3, device="sim"))  # the first argument counts too
    assert guard.remove(model).forward is not old


# Modules that move themselves


class Metric(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(2)
        self.defaults = {"total": torch.zeros(2)}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Metric":
        super()._apply(fn, recurse)
        self.total = fn(self.total)
        self.defaults = {key: fn(value) for key, value in self.defaults.items()}
        return self


class Measured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.acc = Metric()


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_audit_leaves_modules_alone_that_move_themselves(
    device: str, simulated_accelerator: Simulation
) -> None:
    assert not audit(Measured().to(device))
    assert not audit(Metric().to(device), device=device)


def test_audit_finds_such_a_module_that_is_elsewhere(simulated_accelerator: Simulation) -> None:
    model = Measured().to("sim")
    model.acc = Metric()
    (finding,) = audit(model)
    assert (finding.kind, finding.path, finding.device) == ("device", "model.acc", "cpu")
    assert finding.fix == 'model.acc.to("sim:0")'
    exec(finding.fix, {"model": model})
    assert not audit(model)


def test_audit_finds_such_a_module_in_a_plain_list() -> None:
    model = Measured()
    model.others = [Metric()]
    assert [(one.kind, one.path) for one in audit(model)] == [("layer", "model.others[0]")]


class Quantized(nn.Module):
    """Overrides `to`, as models of several libraries do, only to look at the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.table = torch.ones(3)

    def to(self, *args: object, **kwargs: object) -> "Quantized":
        if "dtype" in kwargs:
            raise ValueError("no casts")
        return super().to(*args, **kwargs)  # type: ignore[arg-type, no-any-return, call-overload]


class Moving(Quantized):
    def to(self, *args: object, **kwargs: object) -> "Moving":
        super().to(*args, **kwargs)
        self._follow()
        return self

    def _follow(self) -> None:
        self.table = self.table.to(self.fc.weight.device)


class Recurrent(nn.LSTM):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.table = torch.ones(3)


@pytest.mark.parametrize(
    ("model", "paths"),
    [
        (Quantized(), ["model.table"]),
        (Moving(), []),
        (nn.Sequential(Moving()), ["model[0].table"]),  # nobody calls the `to` of a child
        (Recurrent(), ["model.table"]),
    ],
    ids=["looks", "moves", "child", "torch"],
)
def test_an_override_of_to_counts_where_it_moves(model: nn.Module, paths: list[str]) -> None:
    assert [one.path for one in audit(model)] == paths
