"""A tensor is shared by all instances as an attribute of the class."""

# culprit: self.scale
# says: attribute of the class Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    scale = torch.full((3,), 2.0)

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x) * self.scale


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
