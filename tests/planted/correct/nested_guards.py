"""Guarded functions call guarded functions, and themselves."""

import torch

import devicekit


@devicekit.guard
@devicekit.guard
def power(x, n):
    return x if n == 1 else multiply(x, power(x, n - 1))


@devicekit.guard
def multiply(a, b):
    return a * b


def main(device):
    return power(torch.full((2,), 3.0, device=device), 3)
