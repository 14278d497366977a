"""The mismatch shows in a helper, the tensor was made in its caller."""

# culprit: weights
# says: made by torch.arange(3.0) without device=
import torch

import devicekit


def weighted(values, weights):
    return (values * weights).sum()


@devicekit.guard
def score(values):
    weights = torch.arange(3.0)
    return weighted(values, weights)


def main(device):
    return score(torch.ones(3, device=device))
