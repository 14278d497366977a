"""A tensor is handed on twice before it meets another."""

# culprit: b
# says: made by torch.full((3,), 2.0) without device=
import torch

import devicekit


def add(a, b):
    return a + b


def add_twice(x, y):
    return add(add(x, y), y)


@devicekit.guard
def run(x):
    shift = torch.full((3,), 2.0)
    return add_twice(x, shift)


def main(device):
    return run(torch.ones(3, device=device))
