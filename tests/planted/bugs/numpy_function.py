"""numpy is given a tensor of the device."""

# culprit: losses
# says: can't convert
import numpy as np
import torch

import devicekit


@devicekit.guard
def summary(losses):
    return torch.tensor(np.asarray(losses).max())


def main(device):
    return summary(torch.ones(3, device=device))
