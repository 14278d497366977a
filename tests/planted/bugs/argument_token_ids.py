"""Token ids on the CPU, an embedding on the device."""

# culprit: ids
# says: int64[2, 2]
import torch
from torch import nn

import devicekit


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    @devicekit.guard
    def forward(self, ids):
        return self.embedding(ids).mean(1)


def main(device):
    torch.manual_seed(0)
    model = Encoder().to(device)
    ids = torch.tensor([[1, 2], [3, 4]])
    return model(ids)
