"""A static method is given what was left on the CPU."""

# culprit: weights
# says: float32[3]
import torch

import devicekit


class Metrics:
    @devicekit.guard
    @staticmethod
    def weighted(values, weights):
        return (values * weights).sum()


def main(device):
    values = torch.ones(3, device=device)
    weights = torch.arange(3.0)
    return Metrics.weighted(values, weights)
