"""The inputs of a loader were moved, the targets were not."""

# culprit: y
# says: from the DataLoader `loader`
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devicekit


@devicekit.guard
def train(model, loader, device):
    total = 0.0
    for step, (x, y) in enumerate(loader):
        total = total + F.cross_entropy(model(x.to(device)), y) * step
    return total


def main(device):
    torch.manual_seed(0)
    labels = torch.tensor([0, 1, 1, 0])
    loader = DataLoader(TensorDataset(torch.ones(4, 3), labels), batch_size=2)
    return train(nn.Linear(3, 2).to(device), loader, device)
