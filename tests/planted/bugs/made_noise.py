"""Noise of fixed size is drawn without a device."""

# culprit: noise
# says: made by torch.ones(3) without device=
import torch

import devicekit


@devicekit.guard
def augment(x, strength=0.1):
    noise = torch.ones(3) * strength
    return x + noise


def main(device):
    return augment(torch.ones(2, 3, device=device))
