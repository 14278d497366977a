"""Layers in a Python list are summed in a generator expression."""

# culprit: self.experts[0]
# says: in a plain list of Mixture
import torch
from torch import nn

import devicekit


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(3, 1)
        self.experts = [nn.Linear(3, 3), nn.Linear(3, 3)]

    @devicekit.guard
    def forward(self, x):
        return self.gate(x) * sum(expert(x) for expert in self.experts)


def main(device):
    torch.manual_seed(0)
    return Mixture().to(device)(torch.ones(2, 3, device=device))
