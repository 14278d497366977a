"""A class token is put in front without a device."""

# culprit: torch.zeros(1, 3)
# says: made here without device=
import torch

import devicekit


@devicekit.guard
def with_token(x):
    return torch.cat([torch.zeros(1, 3), x])


def main(device):
    return with_token(torch.ones(2, 3, device=device))
