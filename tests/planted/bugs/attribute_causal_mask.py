"""A causal mask is a plain attribute, and made over several lines."""

# culprit: self.mask
# says: plain attribute of Attention
import torch
from torch import nn

import devicekit


class Attention(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.query = nn.Linear(3, 3)
        self.mask = torch.triu(
            torch.ones(length, length),
            diagonal=1,
        ).bool()

    @devicekit.guard
    def forward(self, x):
        scores = self.query(x) @ x.transpose(-1, -2)
        return scores.masked_fill(self.mask, 0.0)


def main(device):
    torch.manual_seed(0)
    model = Attention(4).to(device)
    return model(torch.ones(4, 3, device=device))
