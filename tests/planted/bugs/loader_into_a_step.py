"""The loop hands its batch to a guarded step."""

# culprit: x
# says: from the DataLoader `loader`
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devicekit


@devicekit.guard
def step(model, x, y):
    return (model(x) - y).abs().mean()


def main(device):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)), batch_size=2)
    model = nn.Linear(3, 1).to(device)
    losses = []
    for x, y in loader:
        losses.append(step(model, x, y))
    return torch.stack(losses)
