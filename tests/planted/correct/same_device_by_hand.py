"""Objects of all kinds agree."""

import torch
from torch import nn

import devicekit


def main(device):
    model = nn.Linear(2, 1).to(device)
    batch = {"x": torch.ones(2, 2, device=device), "scale": torch.tensor(2.0)}
    found = devicekit.same_device(model, batch, torch.zeros(1, device=device))
    return torch.tensor(found == str(torch.zeros(1, device=device).device))
