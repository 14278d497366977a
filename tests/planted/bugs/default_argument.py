"""A default argument is a tensor of the CPU."""

# culprit: weight
# says: argument of weighted
import torch

import devicekit


@devicekit.guard
def score(x):
    return weighted(x)


def weighted(x, weight=torch.ones(3)):  # noqa: B008
    return (x * weight).sum()


def main(device):
    return score(torch.ones(3, device=device))
