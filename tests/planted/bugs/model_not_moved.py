"""The batch was moved, the model was not."""

# culprit: self
# says: Net: 2 parameters
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
    model = Net()
    x = torch.ones(4, 3).to(device)
    return model(x)
