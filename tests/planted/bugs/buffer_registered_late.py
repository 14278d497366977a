"""A buffer is registered after the model was moved."""

# culprit: self.mask
# says: buffer of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x) * self.mask


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    model.register_buffer("mask", torch.eye(3))
    x = torch.ones(3, 3, device=device)
    return model(x)
