"""A constant of the module's top level."""

# culprit: MEAN
# says: global
import torch

import devicekit

MEAN = torch.tensor([0.5, 0.4, 0.3])


@devicekit.guard
def normalise(x):
    return x - MEAN


def main(device):
    return normalise(torch.ones(2, 3, device=device))
