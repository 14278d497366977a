"""A function of any arguments."""

import torch

import devicekit


@devicekit.guard
def total(*tensors, **named):
    return sum(tensors) + sum(named.values())


def main(device):
    x = torch.ones(2, device=device)
    return total(x, x, a=x, b=torch.tensor(1.0))
