"""Factories: right values on the right device."""

import numpy as np
import pytest
import torch
from comparing import close, on, refused
from torch import nn

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

FACTORIES = {
    "zeros": lambda d: torch.zeros(2, 3, device=d),
    "ones": lambda d: torch.ones(2, 3, device=d, dtype=torch.float64),
    "full": lambda d: torch.full((2,), 7, device=d),
    "arange": lambda d: torch.arange(2, 10, 2, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "logspace": lambda d: torch.logspace(0, 2, 3, device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "scalar": lambda d: torch.tensor(3.5, device=d),
    "bool": lambda d: torch.tensor([True, False], device=d),
    "as_tensor": lambda d: torch.as_tensor([1.0, 2.0], device=d),
    "as_tensor-numpy": lambda d: torch.as_tensor(np.arange(3.0), device=d),
    "tril_indices": lambda d: torch.tril_indices(3, 3, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 2, device=d)),
    "full_like": lambda d: torch.full_like(torch.ones(2, device=d), 4.0),
    "new_zeros": lambda d: torch.ones(1, device=d).new_zeros(2, 2),
    "new_tensor": lambda d: torch.ones(1, device=d).new_tensor([1.0, 2.0]),
    "scalar_tensor": lambda d: torch.scalar_tensor(2.0, device=d),
    "complex": lambda d: torch.complex(torch.ones(2, device=d), torch.zeros(2, device=d)),
    "bfloat16": lambda d: torch.ones(2, device=d, dtype=torch.bfloat16),
    "nothing": lambda d: torch.empty(0, device=d),
    "hann_window": lambda d: torch.hann_window(4, device=d),
}


@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
@pytest.mark.parametrize("name", FACTORIES)
def test_factory(name, device):
    made = FACTORIES[name](device)
    on(device, made)
    close(made, FACTORIES[name]("cpu"))


RANDOM = {
    "rand": lambda d: torch.rand(100, device=d),
    "randn": lambda d: torch.randn(100, device=d),
    "randint": lambda d: torch.randint(0, 5, (100,), device=d),
    "randperm": lambda d: torch.randperm(50, device=d),
    "uniform_": lambda d: torch.empty(100, device=d).uniform_(),
    "normal_": lambda d: torch.empty(100, device=d).normal_(),
    "exponential_": lambda d: torch.empty(10, device=d).exponential_(),
    "bernoulli": lambda d: torch.bernoulli(torch.full((100,), 0.5, device=d)),
    "rand_like": lambda d: torch.rand_like(torch.zeros(5, device=d)),
    "multinomial": lambda d: torch.multinomial(torch.ones(4, device=d), 2),
    "normal": lambda d: torch.normal(torch.zeros(4, device=d), torch.ones(4, device=d)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_there_and_repeat(name):
    torch.manual_seed(1)
    made = RANDOM[name]("sim:0")
    on("sim:0", made)
    assert made.cpu().double().isfinite().all()
    torch.manual_seed(1)
    close(RANDOM[name]("sim:0"), made)


def test_type_without_index_is_the_current_device():
    on("sim:0", torch.zeros(2, device="sim"))
    with torch.get_device_module("sim").device(1):
        on("sim:1", torch.zeros(2, device="sim"))


def test_device_as_context_manager():
    with torch.device("sim:1"):
        made, layer = torch.zeros(2), nn.Linear(2, 2)
    on("sim:1", made, layer.weight)


def test_set_default_device():
    torch.set_default_device("sim:0")
    try:
        on("sim:0", torch.zeros(2), torch.tensor([1.0]), torch.randn(3).relu())
    finally:
        torch.set_default_device(None)


def test_module_made_on_the_device():
    layer = nn.Linear(3, 4, device="sim:0")
    on("sim:0", layer.weight, layer.bias)
    assert isinstance(layer.weight, nn.Parameter)


@pytest.mark.parametrize("index", [2, 9])
def test_invalid_ordinal_is_cudas_error(index):
    refused(lambda: torch.zeros(1, device=f"sim:{index}"), match="invalid device ordinal")
    refused(lambda: torch.zeros(1).to(f"sim:{index}"), match="invalid device ordinal")


def test_plain_class():
    x = torch.zeros(2, device="sim")
    assert type(x) is torch.Tensor
    assert type(x + 1) is torch.Tensor
