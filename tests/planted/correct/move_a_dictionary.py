"""The guard moves a nested batch to the module among the arguments."""

import torch
from torch import nn

import devicekit


@devicekit.guard(move=True)
def loss(model, batch):
    return (model(batch["x"]) - batch["targets"][0]).abs().mean()


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(device)
    return loss(model, {"x": torch.ones(2, 3), "targets": [torch.zeros(2, 1)], "name": "a"})
