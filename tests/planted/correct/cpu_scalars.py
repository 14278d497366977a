"""CPU scalars meet tensors of the device."""

import torch

import devicekit


@devicekit.guard
def scaled(x, factor, shift):
    return x * factor + shift


def main(device):
    return scaled(torch.ones(3, device=device), torch.tensor(2.0), torch.tensor(0.5))
