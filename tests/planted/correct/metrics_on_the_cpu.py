"""Results are brought to the CPU and counted there."""

import torch
from torch import nn

import devicekit


@devicekit.guard
def evaluate(model, x, device):
    counts = torch.zeros(2, dtype=torch.long)
    guess = model(x).argmax(-1).cpu()
    counts += torch.bincount(guess, minlength=2)
    return counts


def main(device):
    torch.manual_seed(0)
    return evaluate(nn.Linear(3, 2).to(device), torch.rand(8, 3).to(device), device)
