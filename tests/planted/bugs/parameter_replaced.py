"""A weight is set by hand, on the CPU."""

# culprit: self.weight
# says: parameter of Scale
import torch
from torch import nn

import devicekit


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.bias = nn.Parameter(torch.zeros(3))

    @devicekit.guard
    def forward(self, x):
        return x * self.weight + self.bias


def main(device):
    model = Scale().to(device)
    model.weight = nn.Parameter(torch.ones(3))
    x = torch.ones(2, 3, device=device)
    return model(x)
