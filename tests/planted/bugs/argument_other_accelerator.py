"""The input went to the second accelerator, the model to the first."""

# culprit: x
# says: float32[3]
# cpu: no
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @devicekit.guard
    def forward(self, x):
        return self.fc(x)


def main(device):
    torch.manual_seed(0)
    model = Net().to("sim:0")
    x = torch.ones(3, device="sim:1")
    return model(x)
