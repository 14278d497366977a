"""Backward, twice, through a guarded function."""

import torch

import devicekit


@devicekit.guard
def cube(x):
    return (x**3).sum()


def main(device):
    x = torch.arange(3.0, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(cube(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    return first.detach(), second
