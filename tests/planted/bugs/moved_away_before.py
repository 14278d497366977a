"""Predictions were moved to the CPU some lines before."""

# culprit: guess
# says: made by scores.argmax(-1).cpu()
import torch

import devicekit


@devicekit.guard
def accuracy(scores, labels):
    guess = scores.argmax(-1).cpu()
    return (guess == labels).float().mean()


def main(device):
    return accuracy(torch.eye(3, device=device), torch.arange(3, device=device))
