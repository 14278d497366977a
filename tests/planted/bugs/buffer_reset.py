"""A running sum is reset with a tensor of the CPU."""

# culprit: self.total
# says: buffer of Meter
import torch
from torch import nn

import devicekit


class Meter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("count", torch.zeros(3))

    def reset(self):
        self.total = torch.zeros(3)

    @devicekit.guard
    def forward(self, values):
        self.total += values
        self.count += 1
        return self.total / self.count


def main(device):
    meter = Meter().to(device)
    meter.reset()
    return meter(torch.ones(3, device=device))
