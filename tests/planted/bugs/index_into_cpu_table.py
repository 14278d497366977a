"""A table on the CPU is indexed with indices of the device."""

# culprit: table
# says: made by torch.arange(10.0) without device=
import torch

import devicekit


@devicekit.guard
def lookup(indices):
    table = torch.arange(10.0)
    return table[indices]


def main(device):
    return lookup(torch.tensor([1, 2], device=device))
