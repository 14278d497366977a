"""A batch that was never moved is passed to a model on the device."""

# culprit: x
# says: float32[4, 3]
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x)


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    x = torch.linspace(0, 1, 12).reshape(4, 3)
    return model(x)
