"""A model that another library has spread takes its input anywhere."""

import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.fc = nn.Linear(3, 1).to(device)
        self.hf_device_map = {"fc": device, "other": "disk"}

    @devicekit.guard
    def forward(self, x):
        return self.fc(x.to(self.fc.weight.device))


def main(device):
    torch.manual_seed(0)
    return Net(device)(torch.ones(2, 3))
