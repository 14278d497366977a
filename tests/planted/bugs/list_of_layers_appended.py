"""Layers are appended to a Python list."""

# culprit: self.blocks[0]
# says: in a plain list of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.blocks = []
        for _ in range(depth):
            self.blocks.append(nn.Linear(3, 3))

    @devicekit.guard
    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x) * (number + 1)
        return self.out(x)


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
