"""One batch is drawn with `next`."""

# culprit: x
# says: from the DataLoader `loader`
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devicekit


@devicekit.guard
def first_loss(model, loader):
    x, y = next(iter(loader))
    return (model(x) - y).abs().mean()


def main(device):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.ones(4, 3), torch.ones(4, 1)), batch_size=2)
    return first_loss(nn.Linear(3, 1).to(device), loader)
