"""Layers are kept in a list of lists."""

# culprit: layer
# says: in a plain list of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(3, 1)
        self.stages = [[nn.Linear(3, 3)], [nn.Linear(3, 3), nn.ReLU()]]

    @devicekit.guard
    def forward(self, x):
        for stage in self.stages:
            for layer in stage:
                x = layer(x)
        return self.out(x)


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
