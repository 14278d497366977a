"""The plain attribute is made by the base class."""

# culprit: self.mean
# says: plain attribute of Net
import torch
from torch import nn

import devicekit


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.tensor([0.5, 0.4, 0.3])


class Net(Normalised):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x - self.mean)


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
