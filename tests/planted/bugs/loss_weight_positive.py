"""The weight of the positive class stays on the CPU."""

# culprit: criterion
# says: BCEWithLogitsLoss: 1 buffer
import torch
from torch import nn

import devicekit


@devicekit.guard
def evaluate(criterion, scores, targets):
    return criterion(scores, targets)


def main(device):
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0]))
    scores = torch.zeros(3, 2, device=device)
    targets = torch.ones(3, 2, device=device)
    return evaluate(criterion, scores, targets)
