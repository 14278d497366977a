"""Buffers move with the model, saved or not."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("pos", torch.arange(3.0))
        self.register_buffer("gate", torch.ones(3), persistent=False)
        self.register_buffer("missing", None)

    @devicekit.guard
    def forward(self, x):
        return (self.fc(x) + self.pos) * self.gate


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
