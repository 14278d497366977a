"""A result is turned into an array where it is."""

# culprit: y
# says: can't convert
import torch

import devicekit


@devicekit.guard
def plot_values(x):
    y = x * 2
    return torch.from_numpy(y.numpy())


def main(device):
    return plot_values(torch.ones(3, device=device))
