"""Moving modules and optimizers: in place, with their ties, and never half-way without a word."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from devicekit import MoveError, to_device
from devicekit.testing import Simulation, assert_on, assert_same, simulate


def tied() -> nn.ModuleDict:
    """Two layers with one weight, and two buffers that are one tensor."""
    module = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    module["b"].weight = module["a"].weight
    module["a"].register_buffer("scale", torch.ones(2))
    module["b"].register_buffer("shared", module["a"].scale)
    return module


@pytest.fixture(params=["meta", "sim"])
def target(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "meta":
        return torch.device("meta")
    running: Simulation = request.getfixturevalue("simulated_accelerator")
    return running.devices[0]


def test_R019_ties_are_kept(target: torch.device) -> None:
    module = tied()

    assert to_device({"m": [module]}, target)["m"][0] is module

    assert module["a"].weight is module["b"].weight
    assert module["a"].scale is module["b"].shared
    assert_on(target, module)
    assert len(list(module.parameters())) == 1
    assert isinstance(module["a"].weight, nn.Parameter)


@pytest.mark.parametrize("first", ["tensors", "module"])
def test_a_tensor_beside_its_module_stays_the_modules(first: str, target: torch.device) -> None:
    module = nn.BatchNorm1d(2)
    tensors = [module.weight, {"b": module.running_mean}]
    data = [tensors, module] if first == "tensors" else [module, tensors]

    moved = to_device(data, target)

    (weight, rest), _ = moved if first == "tensors" else moved[::-1]
    assert weight is module.weight
    assert rest["b"] is module.running_mean
    assert weight.device == rest["b"].device == target


def test_lazy_parameters_move_before_they_are_initialised(
    simulated_accelerator: Simulation,
) -> None:
    module = to_device(nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()), "sim")
    module(torch.ones(2, 4, device="sim"))
    assert_on("sim", module)


def test_values_and_grads_move_too(simulated_accelerator: Simulation) -> None:
    module = nn.Linear(2, 1)
    module(torch.ones(1, 2)).sum().backward()
    before, weight = copy.deepcopy(module.state_dict()), module.weight

    to_device(module, "sim:1")

    assert module.weight is weight  # so that an optimizer made before still has it
    assert weight.grad is not None
    assert str(weight.grad.device) == "sim:1"
    assert_same(module.state_dict(), before)
    to_device(module, "cpu")
    assert_same(module.state_dict(), before)
    assert weight.grad.tolist() == [[1, 1]]


def test_a_module_that_is_there_is_not_touched() -> None:
    class Untouchable(nn.Linear):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("called")

    module = Untouchable(2, 2)
    assert to_device(module, "cpu") is module


def test_its_own_to_is_called() -> None:
    class Own(nn.Linear):
        moved_to: Any = None

        def to(self, *args: Any, **kwargs: Any) -> Any:
            self.moved_to = args[0]
            super().to(*args, **kwargs)  # and returns nothing

    module = Own(2, 2)
    assert to_device([module], "meta")[0] is module
    assert module.moved_to == torch.device("meta")


def test_a_weight_of_a_recurrent_layer_moves_with_its_flat_list() -> None:
    lstm = nn.LSTM(2, 2)
    to_device(lstm, "meta")
    assert all(w is p for w, p in zip(lstm._flat_weights, lstm.parameters(), strict=True))


def test_leftover_meta_parameters_are_named_and_nothing_moves(
    simulated_accelerator: Simulation,
) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))

    with pytest.raises(MoveError, match="Cannot copy out of meta tensor; no data!") as caught:
        to_device({"net": module}, "sim:0")

    text = str(caught.value)
    assert "Sequential has 2 parameters or buffers on meta: 1.weight, 1.bias" in text
    assert 'module.to_empty(device="sim:0")' in text
    assert "while moving data['net'] (Sequential) to sim:0" in caught.value.__notes__
    assert module[0].weight.is_cpu


def test_a_module_that_fails_half_way_says_where_its_parameters_are() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(500, 500))
    try:
        simulation = simulate(memory=5000)
    except NotImplementedError as error:  # torch is too old for the simulation
        pytest.skip(str(error))
    with simulation:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            to_device({"net": module}, "sim:0")
        notes = "\n".join(caught.value.__notes__)
        assert (
            "the parameters and buffers of Sequential are now 2 on sim:0: 0.weight, 0.bias" in notes
        )
        assert "2 on cpu: 1.weight, 1.bias" in notes
        assert "while moving data['net'] (Sequential) to sim:0" in notes
        assert_on("cpu", to_device(module, "cpu"))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, device: Any) -> None:
    optimizer.zero_grad()
    module(torch.ones(3, 2, device=device)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("make", "on_cpu"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), set()),
        (lambda p: torch.optim.Adam(p, lr=0.1, foreach=False), {"step"}),
        (lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=False), {"step"}),
        (lambda p: torch.optim.LBFGS(p, lr=0.1), set()),
    ],
    ids=["SGD", "Adam", "Adagrad", "LBFGS"],
)
def test_the_state_of_an_optimizer_goes_where_torch_puts_it(
    make: Any, on_cpu: set[str], simulated_accelerator: Simulation
) -> None:
    module = nn.Linear(2, 2)
    optimizer = make(module.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = module(torch.ones(3, 2)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = copy.deepcopy(optimizer.state_dict())

    moved, same = to_device((module, optimizer), "sim:0")

    assert moved is module
    assert same is optimizer
    expected = make(module.parameters())
    expected.load_state_dict(before)
    for mine, yours in zip(optimizer.state.values(), expected.state.values(), strict=True):
        for key, value in mine.items():
            if isinstance(value, Tensor):
                assert value.device == yours[key].device, key
                assert (value.device.type == "cpu") == (key in on_cpu), key
    assert_same(optimizer.state_dict()["state"], before["state"])
    if not isinstance(optimizer, torch.optim.LBFGS):
        train(module, optimizer, "sim:0")
    to_device((module, optimizer), "cpu")
    assert all(
        v.is_cpu for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor)
    )


@pytest.mark.parametrize("flag", ["capturable", "fused"])
def test_step_moves_where_the_optimizer_reads_it_on_the_device(
    flag: str, simulated_accelerator: Simulation
) -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    train(module, optimizer, "cpu")
    optimizer.param_groups[0][flag] = True

    to_device([module, optimizer], "sim:0")

    assert {str(s["step"].device) for s in optimizer.state.values()} == {"sim:0"}
    assert {s["step"].dtype for s in optimizer.state.values()} == {torch.float32}
    optimizer.param_groups[0][flag] = False
    to_device([module, optimizer], "cpu")
    assert {str(s["step"].device) for s in optimizer.state.values()} == {"cpu"}


def test_an_optimizer_that_cannot_move_stays_as_it_was() -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    train(module, optimizer, "cpu")
    first, second = optimizer.state.values()
    second["momentum_buffer"] = torch.ones(2, device="meta")

    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor") as caught:
        to_device({"opt": optimizer}, "cpu", dtype=torch.float64)

    assert first["momentum_buffer"].dtype is torch.float32
    notes = "\n".join(caught.value.__notes__)
    assert (
        "while moving state[1]['momentum_buffer'] (float32[2], 8 bytes) from meta to cpu" in notes
    )
    assert "while moving data['opt'] (SGD) to cpu" in notes


def test_strict_accepts_the_step_of_an_optimizer_on_the_cpu(
    simulated_accelerator: Simulation,
) -> None:
    module = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    train(module, optimizer, "cpu")
    to_device({"m": module, "o": optimizer}, "sim:0", strict=True)
    assert_on("sim:0", module)
