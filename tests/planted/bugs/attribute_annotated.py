"""A plain attribute with a type annotation."""

# culprit: self.scale
# says: plain attribute of Net
import torch
from torch import Tensor, nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.scale: Tensor = torch.full((3,), 2.0)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x) * self.scale


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
