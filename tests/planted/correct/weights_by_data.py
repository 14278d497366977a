"""The data of each parameter is replaced."""

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
    before = model(torch.ones(2, 3))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device)
    return before, model(torch.ones(2, 3, device=device))
