"""The argument of a helper is made in the call itself."""

# culprit: weights
# says: made by torch.arange(3.0) without device=
import torch

import devicekit


def weighted(values, weights):
    return (values * weights).sum()


@devicekit.guard
def score(values):
    return weighted(values, torch.arange(3.0))


def main(device):
    return score(torch.ones(3, device=device))
