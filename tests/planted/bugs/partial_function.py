"""A partial function carries a tensor of the CPU."""
# culprit: criterion.keywords['weight']
# says: float32[2]
import functools

import torch
import torch.nn.functional as F

import devicekit


@devicekit.guard
def step(scores, labels, weight):
    criterion = functools.partial(F.cross_entropy, weight=weight)
    return criterion(scores, labels)


def main(device):
    unguarded = step.__wrapped__
    scores = torch.eye(2, device=device)
    labels = torch.tensor([0, 1], device=device)
    run = devicekit.guard(lambda: unguarded(scores, labels, torch.tensor([1.0, 2.0])))
    return run()
