"""A table of positions is a plain attribute."""

# culprit: self.pos
# says: plain attribute of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.pos = torch.arange(3.0)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x) + self.pos


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    return model(torch.ones(2, 3, device=device))
