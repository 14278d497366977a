"""Numbers, text and None among the arguments."""

import torch

import devicekit


@devicekit.guard
def scaled(x, factor=2, shift=0.5, mode="plain", mask=None):
    return x * factor + shift if mode == "plain" and mask is None else x


def main(device):
    return scaled(torch.ones(3, device=device), 3, mode="plain")
