"""The loss was moved with its weights."""

import torch
from torch import nn

import devicekit


@devicekit.guard
def loss(criterion, scores, labels):
    return criterion(scores, labels)


def main(device):
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])).to(device)
    return loss(criterion, torch.eye(2, device=device), torch.tensor([0, 1], device=device))
