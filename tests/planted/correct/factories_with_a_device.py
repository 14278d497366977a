"""Tensors are made where they are needed."""

import torch

import devicekit


@devicekit.guard
def attend(x):
    mask = torch.ones(x.shape[0], x.shape[0], device=x.device).tril()
    shift = x.new_zeros(3)
    return mask @ x + shift + torch.zeros_like(x)


def main(device):
    return attend(torch.ones(2, 3, device=device))
