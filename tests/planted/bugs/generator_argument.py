"""A CPU generator is handed to a sampling function."""

# culprit: generator
# says: generator of another device
# same: no
import torch

import devicekit


@devicekit.guard
def sample(probabilities, generator):
    return torch.multinomial(probabilities, 2, generator=generator)


def main(device):
    generator = torch.Generator().manual_seed(0)
    return sample(torch.full((4,), 0.25, device=device), generator)
