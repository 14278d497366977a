"""Layers and parameters in torch's own containers."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.heads = nn.ModuleDict({"a": nn.Linear(3, 1)})
        self.shifts = nn.ParameterList([nn.Parameter(torch.ones(3))])

    @devicekit.guard
    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + self.shifts[0]
        return self.heads["a"](x)


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
