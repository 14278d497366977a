"""The tensor has no name at all."""

# culprit: torch.ones(3)
# says: made here without device=
import torch

import devicekit


@devicekit.guard
def shift(x):
    return x + torch.ones(3)


def main(device):
    return shift(torch.ones(2, 3, device=device))
