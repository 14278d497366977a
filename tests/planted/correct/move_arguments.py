"""The guard moves the batch itself."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @devicekit.guard(move=True)
    def forward(self, x, mask=None):
        return self.fc(x * mask)


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(4, 3), mask=torch.ones(4, 3))
