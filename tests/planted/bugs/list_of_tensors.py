"""Constant tensors are kept in a Python list."""

# culprit: self.kernels[0]
# says: in a plain list of Filter
import torch
from torch import nn

import devicekit


class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.kernels = [torch.tensor([1.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, -1.0])]

    @devicekit.guard
    def forward(self, x):
        return self.gain * torch.stack([(x * kernel).sum(-1) for kernel in self.kernels])


def main(device):
    return Filter().to(device)(torch.ones(2, 3, device=device))
