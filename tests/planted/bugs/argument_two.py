"""Both inputs were forgotten."""

# culprit: x; batch['mask']
# says: Net: 2 parameters
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @devicekit.guard
    def forward(self, x, batch):
        return self.fc(x * batch["mask"])


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    x = torch.ones(2, 3)
    batch = {"mask": torch.ones(2, 3)}
    return model(x, batch)
