"""Constant tensors are kept in a Python dict."""

# culprit: self.tables['sin']
# says: in a plain dict of Rotary
import torch
from torch import nn

import devicekit


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        angles = torch.arange(3.0)
        self.tables = {"sin": angles.sin(), "cos": angles.cos()}

    @devicekit.guard
    def forward(self, x):
        x = self.fc(x)
        return x * self.tables["sin"] + x * self.tables["cos"]


def main(device):
    torch.manual_seed(0)
    return Rotary().to(device)(torch.ones(2, 3, device=device))
