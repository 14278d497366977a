"""Parameters are kept in a Python dict."""

# culprit: self.prototypes['cat']
# says: in a plain dict of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.prototypes = {"cat": nn.Parameter(torch.ones(3)), "dog": nn.Parameter(torch.zeros(3))}

    @devicekit.guard
    def forward(self, x):
        x = self.fc(x)
        return x @ self.prototypes["cat"] - x @ self.prototypes["dog"]


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device))
