"""A parameter to be fitted is made in the function."""

# culprit: slope
# says: made by torch.ones(1) without device=
import torch
from torch import nn

import devicekit


@devicekit.guard
def fit(x, y):
    slope = nn.Parameter(torch.ones(1))
    loss = ((slope * x - y) ** 2).mean()
    loss.backward()
    return loss


def main(device):
    return fit(torch.arange(3.0, device=device), torch.ones(3, device=device))
