"""One side of the comparison was moved to the CPU for printing."""

# culprit: y.cpu()
# says: moved here
import torch

import devicekit


@devicekit.guard
def accuracy(x, y):
    return (x == y.cpu()).float().mean()


def main(device):
    return accuracy(torch.ones(3, device=device), torch.ones(3, device=device))
