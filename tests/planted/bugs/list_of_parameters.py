"""Parameters are kept in a Python list."""

# culprit: self.weights[0]
# says: in a plain list of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.weights = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))]

    @devicekit.guard
    def forward(self, x):
        x = self.fc(x)
        for weight in self.weights:
            x = x + weight
        return x


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
