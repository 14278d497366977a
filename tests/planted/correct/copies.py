"""A guarded model is copied, and the copy moves alone."""

import copy

import torch
from torch import nn

import devicekit


def main(device):
    torch.manual_seed(0)
    model = devicekit.guard(nn.Linear(3, 1))
    first = model(torch.ones(2, 3))
    other = copy.deepcopy(model).to(device)
    return first, other(torch.ones(2, 3, device=device)), model(torch.ones(2, 3))
