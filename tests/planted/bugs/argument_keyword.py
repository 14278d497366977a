"""The input was moved, the mask that goes with it was not."""

# culprit: mask
# says: bool[4, 3]
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @devicekit.guard
    def forward(self, x, mask=None):
        return self.fc(x.masked_fill(mask, 0.0))


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    x = torch.ones(4, 3, device=device)
    mask = torch.eye(4, 3).bool()
    return model(x, mask=mask)
