"""The state of an optimizer is saved and loaded."""

import io

import torch
from torch import nn

import devicekit


@devicekit.guard
def step(model, optimizer, x):
    model(x).sum().backward()
    optimizer.step()


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer, torch.ones(2, 3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.load_state_dict(torch.load(file))
    step(model, optimizer, torch.ones(2, 3, device=device))
    return model.weight.detach()
