"""The statistics of a normalising layer are replaced by saved ones."""

# culprit: self.norm
# says: self.norm.running_mean
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    @devicekit.guard
    def forward(self, x):
        return self.norm(x)


def main(device):
    model = Net().to(device).eval()
    model.norm.running_mean = torch.full((3,), 0.5)
    x = torch.ones(2, 3, device=device)
    return model(x)
