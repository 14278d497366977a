"""A normaliser that is no module keeps its statistics on the CPU."""

# culprit: normalizer.mean
# says: attribute of Normalizer
import torch

import devicekit


class Normalizer:
    def __init__(self):
        self.mean = torch.full((3,), 0.5)


@devicekit.guard
def prepare(x, normalizer):
    return x - normalizer.mean


def main(device):
    normalizer = Normalizer()
    return prepare(torch.ones(2, 3, device=device), normalizer)
