"""A partial function carries a tensor of the CPU."""

# culprit: criterion.keywords['weight']
# says: made by torch.tensor([1.0, 2.0]) without device=
import functools

import torch
import torch.nn.functional as F

import devicekit


@devicekit.guard
def step(scores, labels):
    weight = torch.tensor([1.0, 2.0])
    criterion = functools.partial(F.cross_entropy, weight=weight)
    return criterion(scores, labels)


def main(device):
    scores = torch.eye(2, device=device)
    labels = torch.tensor([0, 1], device=device)
    return step(scores, labels)
