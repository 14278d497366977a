"""A loss with class weights is made at the top level."""

# culprit: CRITERION
# says: CrossEntropyLoss: 1 buffer
import torch
from torch import nn

import devicekit

CRITERION = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))


@devicekit.guard
def loss(scores, labels):
    return CRITERION(scores, labels)


def main(device):
    scores = torch.eye(2, device=device)
    labels = torch.tensor([0, 1], device=device)
    return loss(scores, labels)
