"""A class method is given what was left on the CPU."""

# culprit: low
# says: float32[3]
import torch

import devicekit


class Range:
    @classmethod
    @devicekit.guard
    def width(cls, low, high):
        return (high - low).sum()


def main(device):
    low = torch.zeros(3)
    high = torch.ones(3, device=device)
    return Range.width(low, high)
