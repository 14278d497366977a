"""A device is demanded, and everything is there."""

import torch
from torch import nn

import devicekit


def main(device):
    @devicekit.guard(device=device)
    def predict(model, x):
        return model(x)

    torch.manual_seed(0)
    return predict(nn.Linear(3, 1).to(device), torch.ones(2, 3, device=device))
