"""A generator is given what was left on the CPU."""

# culprit: step
# says: float32[2]
import torch

import devicekit


@devicekit.guard
def path(start, step):
    for _ in range(3):
        start = start + step
        yield start


def main(device):
    start = torch.zeros(2, device=device)
    step = torch.ones(2)
    points = list(path(start, step))
    return torch.stack(points)
