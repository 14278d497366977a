"""A mask is made in `forward` without a device."""

# culprit: mask
# says: made by torch.zeros(x.shape[0], 3) without device=
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @devicekit.guard
    def forward(self, x):
        mask = torch.zeros(x.shape[0], 3)
        return self.fc(x) + mask


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
