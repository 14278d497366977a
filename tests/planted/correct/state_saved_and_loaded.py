"""A guarded model is saved whole and loaded on the device."""

import io

import torch
from torch import nn

import devicekit


def main(device):
    torch.manual_seed(0)
    model = devicekit.guard(nn.Linear(3, 1))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, map_location=device, weights_only=False)
    return loaded(torch.ones(2, 3, device=device))
