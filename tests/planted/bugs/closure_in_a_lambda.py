"""A lambda carries a tensor of the CPU."""

# culprit: factor
# says: variable of the enclosing function
import torch

import devicekit


def scaled_by(factor):
    return lambda x: x * factor


@devicekit.guard
def apply(function, x):
    return function(x)


def main(device):
    double = scaled_by(torch.full((2,), 2.0))
    return apply(double, torch.ones(2, device=device))
