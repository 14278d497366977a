"""The batches of a loader were never moved."""

# culprit: x
# says: from the DataLoader `loader`
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devicekit


@devicekit.guard
def train(model, loader):
    total = 0.0
    for x, y in loader:
        total = total + ((model(x) - y) ** 2).mean()
    return total


def main(device):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)), batch_size=2)
    model = nn.Linear(3, 1).to(device)
    return train(model, loader)
