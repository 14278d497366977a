"""A list becomes a tensor without a device."""

# culprit: labels
# says: made by torch.tensor(names) without device=
import torch
import torch.nn.functional as F

import devicekit


@devicekit.guard
def loss(scores, names):
    labels = torch.tensor(names)
    return F.cross_entropy(scores, labels)


def main(device):
    return loss(torch.eye(2, device=device), [0, 1])
