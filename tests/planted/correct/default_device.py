"""Tensors are made under a default device."""

import torch

import devicekit


@devicekit.guard
def shifted(x):
    with torch.device(x.device):
        return x + torch.ones(3)


def main(device):
    return shifted(torch.zeros(3, device=device))
