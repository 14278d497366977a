"""Layers in a Python list are used by their index."""

# culprit: self.layers[1]
# says: in a plain list of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.layers = [self.first, nn.Linear(3, 3)]

    @devicekit.guard
    def forward(self, x):
        for i in range(2):
            x = self.layers[i](x)
        return x


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
