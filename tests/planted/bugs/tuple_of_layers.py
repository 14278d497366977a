"""Layers are kept in a tuple."""

# culprit: self.pair[0]
# says: in a plain tuple of Siamese
import torch
from torch import nn

import devicekit


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.pair = (nn.Linear(3, 3), nn.Linear(3, 3))

    @devicekit.guard
    def forward(self, x):
        left = self.pair[0](x)
        return self.out(left - self.pair[1](x))


def main(device):
    torch.manual_seed(0)
    return Siamese().to(device)(torch.ones(2, 3, device=device))
