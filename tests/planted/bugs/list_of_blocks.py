"""Blocks of the user's own are kept in a Python list; the failure is inside one of them."""

# culprit: self.blocks[0]
# says: in a plain list of Net
import torch
from torch import nn

import devicekit


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return x + self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(3, 3)
        self.blocks = [Block(), Block()]

    @devicekit.guard
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return x


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
