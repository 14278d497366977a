"""A pipeline: each half on a device of its own."""

import torch
from torch import nn

import devicekit


class Pipeline(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.one = nn.Linear(3, 4).to(first)
        self.two = nn.Linear(4, 1).to(second)

    @devicekit.guard
    def forward(self, x):
        x = self.one(x.to(self.one.weight.device))
        return self.two(x.to(self.two.weight.device))


def main(device):
    torch.manual_seed(0)
    second = "sim:1" if device != "cpu" else "cpu"
    return Pipeline(device, second)(torch.ones(2, 3))
