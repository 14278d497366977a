"""A constant of the top level, used in the head of an `if`."""

# culprit: LIMIT
# says: global
import torch

import devicekit

LIMIT = torch.tensor([2.0, 2.0])


@devicekit.guard
def clip(x):
    if (x > LIMIT).any():
        return x * 0
    return x


def main(device):
    return clip(torch.ones(2, device=device))
