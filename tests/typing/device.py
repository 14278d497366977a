"""What type checkers say about Device; never run, only checked."""

from argparse import ArgumentParser
from typing import assert_type

import torch
from torch import nn

import devicekit
from devicekit import Device

device = Device("cuda:1", fallback="cpu")
assert_type(device, Device)
assert_type(devicekit.Device(), Device)
assert_type(Device(None, fallback=None), Device)
assert_type(Device(0), Device)
assert_type(Device(torch.device("cpu"), fallback=device), Device)

assert_type(device.torch, torch.device)
assert_type(device.type, str)
assert_type(device.index, int | None)
assert_type(device.name, str)
assert_type(device.requested, str)
assert_type(device.reason, str | None)
assert_type(device.why, str)
assert_type(device.is_accelerator, bool)
assert_type(device == torch.device("cpu"), bool)
assert_type(Device.available(), list[Device])
assert_type(Device.of(torch.zeros(1)), Device)

text: str = device

x = torch.zeros(2, device=device)
assert_type(x.to(device), torch.Tensor)
assert_type(x.to(device, non_blocking=True), torch.Tensor)
assert_type(nn.Linear(2, 2, device=device).to(device), nn.Linear)
torch.load("checkpoint.pt", map_location=device)
torch.Generator(device=device)
torch.set_default_device(device)
with device as entered:
    assert_type(entered, Device)

parser = ArgumentParser()
parser.add_argument("--device", type=Device, default="auto")

# What is no device is an error before the program runs.
Device(1.5)  # type: ignore[arg-type]
Device(b"cpu")  # type: ignore[arg-type]
Device("cuda", fallback=object())  # type: ignore[arg-type]
