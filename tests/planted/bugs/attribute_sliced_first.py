"""The plain attribute is cut to length before it is used."""

# culprit: pos
# says: plain attribute of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.table = torch.zeros(10, 3)

    @devicekit.guard
    def forward(self, x):
        pos = self.table[: x.shape[0]].unsqueeze(0)
        return self.fc(x) + pos


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
