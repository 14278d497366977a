"""A helper makes the mask, and knows no device."""

# culprit: mask
# says: made by make_mask(x.shape[0])
import torch

import devicekit


def make_mask(length):
    return torch.ones(length, length).tril()


@devicekit.guard
def attend(x):
    mask = make_mask(x.shape[0])
    return mask @ x


def main(device):
    return attend(torch.ones(2, 3, device=device))
