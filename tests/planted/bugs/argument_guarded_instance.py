"""A model of somebody else, guarded from outside."""

# culprit: input
# says: Sequential: 4 parameters
import torch
from torch import nn

import devicekit


def main(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    model = devicekit.guard(model.to(device))
    x = torch.ones(2, 3)
    return model(x)
