"""The weights of embedding and head are one."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    @devicekit.guard
    def forward(self, ids):
        return self.head(self.embedding(ids))


def main(device):
    torch.manual_seed(0)
    return Net().to(device)(torch.tensor([[1, 2]], device=device))
