"""A layer is replaced by one on another device, and the rest follows."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x)


def main(device):
    torch.manual_seed(0)
    model = Net()
    model(torch.ones(2, 3))
    model.fc = nn.Linear(3, 1).to(device)
    return model(torch.ones(2, 3, device=device))
