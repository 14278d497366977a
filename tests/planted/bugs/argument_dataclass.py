"""A dataclass of tensors, half of it moved by hand."""

# culprit: batch.labels
# says: int64[2]
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import devicekit


@dataclass
class Batch:
    scores: torch.Tensor
    labels: torch.Tensor


@devicekit.guard
def loss(batch):
    return F.cross_entropy(batch.scores, batch.labels)


def main(device):
    batch = Batch(torch.eye(2), torch.tensor([0, 1]))
    batch.scores = batch.scores.to(device)
    return loss(batch)
