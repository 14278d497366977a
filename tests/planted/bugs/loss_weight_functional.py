"""Class weights are given to the functional loss."""

# culprit: self.class_weights
# says: plain attribute of Net
import torch
import torch.nn.functional as F
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.class_weights = torch.tensor([1.0, 3.0])

    @devicekit.guard
    def loss(self, x, y):
        return F.cross_entropy(self.fc(x), y, weight=self.class_weights)


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    y = torch.tensor([0, 1], device=device)
    return model.loss(torch.ones(2, 3, device=device), y)
