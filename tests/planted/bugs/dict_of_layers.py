"""Heads are kept in a Python dict."""

# culprit: self.heads['digit']
# says: in a plain dict of Net
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.heads = {"digit": nn.Linear(3, 10), "sign": nn.Linear(3, 2)}

    @devicekit.guard
    def forward(self, x, task):
        return self.heads[task](self.body(x))


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.ones(2, 3, device=device), "digit")
