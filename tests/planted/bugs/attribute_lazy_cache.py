"""A cache is filled in `forward`, on the CPU."""

# culprit: self.cache
# says: made by torch.ones(x.shape[-1]) without device=
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.cache = None

    @devicekit.guard
    def forward(self, x):
        if self.cache is None:
            self.cache = torch.ones(x.shape[-1])
        return self.fc(x) * self.cache


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
