"""The guard moves everything to the device it was given."""

import torch

import devicekit


def main(device):
    @devicekit.guard(device=device, move=True)
    def add(a, b):
        return a + b

    return add(torch.ones(3), torch.ones(3, device=device))
