"""The optimizer holds the same parameters after the move."""

import torch
from torch import nn

import devicekit


@devicekit.guard
def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.to(device)
    for _ in range(2):
        step(model, optimizer, torch.ones(2, 3, device=device))
    return model.weight.detach()
