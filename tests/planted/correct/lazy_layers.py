"""A layer whose parameters have no shape before the first call."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.fc = nn.LazyLinear(2)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x) * self.scale


def main(device):
    torch.manual_seed(0)
    model = Net()
    model(torch.ones(2, 3))
    return model.to(device)(torch.ones(2, 3, device=device))
