"""An encoder was moved, its decoder was not."""

# culprit: decoder
# says: Linear: 2 parameters
import torch
from torch import nn

import devicekit


@devicekit.guard
def reconstruct(x, device):
    torch.manual_seed(0)
    encoder = nn.Linear(3, 2).to(device)
    decoder = nn.Linear(2, 3)
    code = encoder(x)
    return decoder(code)


def main(device):
    return reconstruct(torch.ones(4, 3, device=device), device)
