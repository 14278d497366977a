"""The call that makes the tensor takes several lines."""

# culprit: bias
# says: without device=
import torch

import devicekit


@devicekit.guard
def shift(x):
    bias = torch.full(
        (3,),
        0.5,
    )
    return x + bias


def main(device):
    return shift(torch.ones(2, 3, device=device))
