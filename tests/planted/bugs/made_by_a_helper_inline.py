"""A helper makes the mask, in the expression itself."""

# culprit: make_mask(x.shape[0])
# says: made by this call
import torch

import devicekit


def make_mask(length):
    return torch.ones(length, length).tril()


@devicekit.guard
def attend(x):
    return make_mask(x.shape[0]) @ x


def main(device):
    return attend(torch.ones(2, 3, device=device))
