"""A variable of the enclosing function."""

# culprit: noise
# says: variable of the enclosing function
import torch

import devicekit


def make_step():
    noise = torch.tensor([0.1, -0.1])

    @devicekit.guard
    def step(x):
        return x + noise

    return step


def main(device):
    step = make_step()
    return step(torch.ones(2, device=device))
