"""The first hidden state is made when none is given."""

# culprit: hidden
# says: made by torch.zeros(x.shape[0], 4) without device=
import torch
from torch import nn

import devicekit


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    @devicekit.guard
    def forward(self, x, hidden=None):
        if hidden is None:
            hidden = torch.zeros(x.shape[0], 4)
        return self.cell(x, hidden)


def main(device):
    torch.manual_seed(0)
    return Cell().to(device)(torch.ones(2, 3, device=device))
