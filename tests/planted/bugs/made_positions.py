"""Positions are made for an embedding without a device."""

# culprit: positions
# says: made by torch.arange(ids.shape[1]) without device=
import torch
from torch import nn

import devicekit


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(10, 4)
        self.positions = nn.Embedding(10, 4)

    @devicekit.guard
    def forward(self, ids):
        positions = torch.arange(ids.shape[1]).unsqueeze(0)
        return self.tokens(ids) + self.positions(positions)


def main(device):
    torch.manual_seed(0)
    return Encoder().to(device)(torch.tensor([[1, 2, 3]], device=device))
