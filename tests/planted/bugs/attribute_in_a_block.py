"""The plain attribute belongs to a layer inside the model."""

# culprit: self.gate
# says: plain attribute of Block
import torch
from torch import nn

import devicekit


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.gate = torch.tensor([1.0, 0.0, 1.0])

    def forward(self, x):
        return self.gate * self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    @devicekit.guard
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
