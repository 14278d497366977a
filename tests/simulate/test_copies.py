"""From device to device: `.to`, `copy_`, `.cpu`, numbers and NumPy."""

import numpy as np
import pytest
import torch
from comparing import close, on, refused
from torch import nn

pytestmark = pytest.mark.usefixtures("simulated_accelerator")


def test_to_and_back():
    x = torch.randn(3, 4)
    moved = x.to("sim:0")
    on("sim:0", moved)
    assert moved.to("sim:0") is moved
    assert torch.equal(moved.cpu(), x)
    assert torch.equal(moved.to("cpu"), x)


def test_to_copies():
    x = torch.zeros(3)
    moved = x.to("sim:0")
    x.fill_(5)
    assert moved.sum().item() == 0
    moved.fill_(7)
    back = moved.cpu()
    back.zero_()
    assert x.sum().item() == 15
    assert moved.sum().item() == 21


def test_method_named_like_the_device():
    moved = torch.zeros(2).sim()
    on("sim:0", moved, nn.Linear(2, 2).sim().weight, torch.zeros(2).sim(1).to("sim:0"))
    assert moved.is_sim


def test_to_with_all_options():
    moved = torch.arange(4).to(device="sim:0", dtype=torch.float64, non_blocking=True, copy=True)
    on("sim:0", moved)
    assert moved.dtype == torch.float64


def test_to_like_another_tensor():
    there = torch.zeros(1, device="sim:1")
    on("sim:1", torch.ones(2).to(there), torch.ones(2).type_as(there))


def test_to_the_type_is_to_the_current_device():
    with torch.get_device_module("sim").device(1):
        on("sim:1", torch.zeros(1).to("sim"), torch.zeros(1).to(device=torch.device("sim")))
        on("sim:1", nn.Linear(1, 1).to("sim").weight, torch.zeros(1, device="sim:0").to("sim"))
    on("sim:0", torch.zeros(1).to("sim"))


def test_copy_both_ways():
    host, there = torch.zeros(2, 3), torch.arange(6.0, device="sim:0").view(2, 3)
    host.copy_(there)
    close(host, there)
    there.copy_(torch.ones(2, 3))
    close(there, torch.ones(2, 3))
    there.t().copy_(torch.arange(6.0).view(3, 2))
    close(there.t(), torch.arange(6.0).view(3, 2))


def test_between_devices():
    moved = torch.arange(3.0, device="sim:0").to("sim:1")
    on("sim:1", moved)
    back = torch.zeros(3, device="sim:0")
    on("sim:0", back.copy_(moved))
    close(back, torch.arange(3.0))


def test_strides_are_kept():
    x = torch.randn(4, 5).t()
    moved = x.to("sim:0")
    close(moved, x)
    assert moved.stride() == x.stride()


def test_channels_last():
    x = torch.randn(2, 3, 4, 4)
    for moved in (
        x.to(memory_format=torch.channels_last).to("sim:0"),
        x.to("sim:0").to(memory_format=torch.channels_last),
    ):
        assert moved.is_contiguous(memory_format=torch.channels_last)
        close(moved, x)


def test_numpy_is_refused():
    x = torch.ones(2, device="sim:0")
    refused(x.numpy, match="can't convert sim:0 device type tensor to numpy")
    refused(lambda: np.asarray(x), match="can't convert")
    assert x.cpu().numpy().sum() == 2


def test_numbers():
    x = torch.tensor([1, 2, 3], device="sim:0")
    assert x.sum().item() == 6
    assert x.tolist() == [1, 2, 3]
    assert (float(x[0]), int(x[1]), bool(x[0] == 1)) == (1.0, 2, True)
    assert [10, 20, 30][x[1]] == 30
    assert x.max() > 2
    assert len(x) == 3
    assert [int(v) for v in x] == [1, 2, 3]
    assert f"{torch.tensor(1.5, device='sim:0'):.2f}" == "1.50"


def test_autograd_through_to():
    w, factors = torch.ones(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    (w.to("sim:0") * factors.to("sim:0")).sum().backward()
    on("cpu", w.grad)
    close(w.grad, factors)
    x = torch.ones(3, device="sim:0", requires_grad=True)
    (x.cpu() * factors).sum().backward()
    on("sim:0", x.grad)
    close(x.grad, factors)


def test_autograd_between_devices():
    x = torch.ones(3, device="sim:0", requires_grad=True)
    (x.to("sim:1") * 2).sum().backward()
    on("sim:0", x.grad)
    close(x.grad, torch.full((3,), 2.0))


def test_what_a_tensor_says():
    x = torch.zeros(2, device="sim:0")
    assert x.get_device() == 0
    assert not x.is_cpu
    assert str(x.device) == "sim:0"
    assert x.device != torch.device("cpu")


def test_repr():
    x = torch.tensor([1.5, 2.5], device="sim:0")
    assert repr(x) == "tensor([1.5000, 2.5000], device='sim:0')"
    for y in (nn.Parameter(x), torch.zeros(0, device="sim:0"), torch.randn(1000, device="sim:1")):
        assert "device='sim:" in repr(y)
    assert "grad_fn" in repr(torch.ones(3, device="sim:0", requires_grad=True) * 2)
