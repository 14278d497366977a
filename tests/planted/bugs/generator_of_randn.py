"""A CPU generator is asked for numbers on the device."""

# culprit: generator
# says: generator of another device
# same: no
import torch

import devicekit


@devicekit.guard
def noise(device):
    generator = torch.Generator()
    generator.manual_seed(0)
    return torch.randn(3, device=device, generator=generator)


def main(device):
    return noise(device)
