"""An array becomes a tensor of the CPU."""

# culprit: weights
# says: made by torch.from_numpy(array)
import numpy as np
import torch

import devicekit


@devicekit.guard
def weighted(x, array):
    weights = torch.from_numpy(array)
    return x * weights


def main(device):
    return weighted(torch.ones(2, device=device), np.ones(2, dtype=np.float32))
