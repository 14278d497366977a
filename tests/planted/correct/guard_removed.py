"""A guard is put on a model and taken off."""

import torch
from torch import nn

import devicekit


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(device)
    guarded = devicekit.guard(devicekit.guard(model))
    first = guarded(torch.ones(2, 3, device=device))
    devicekit.guard.remove(devicekit.guard.remove(model))
    assert type(model) is nn.Linear
    return first, model(torch.ones(2, 3, device=device))
