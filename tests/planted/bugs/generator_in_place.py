"""Weights are initialised with a CPU generator."""

# culprit: g
# says: generator of another device
# same: no
import torch
from torch import nn

import devicekit


@devicekit.guard
def initialise(layer):
    g = torch.Generator()
    with torch.no_grad():
        layer.weight.normal_(generator=g)
    return layer.weight


def main(device):
    return initialise(nn.Linear(3, 3).to(device))
