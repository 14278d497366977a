"""A model moves between two calls, and back."""

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
    x = torch.ones(2, 3)
    results = [model.to(place)(x.to(place)).cpu() for place in ("cpu", device, "cpu", device)]
    return torch.stack(results)
