"""Layers are kept in a Python list."""

# culprit: self.layers[0]
# says: in a plain list of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3) for _ in range(2)]
        self.out = nn.Linear(3, 1)

    @devicekit.guard
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
