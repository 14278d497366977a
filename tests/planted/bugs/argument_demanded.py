"""A function that demands a device is given tensors and a model of the CPU."""

# culprit: model
# says: Linear: 2 parameters
import torch
from torch import nn

import devicekit


def main(device):
    @devicekit.guard(device=device)
    def predict(model, x):
        return model(x)

    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x = torch.ones(2, 3, device=device)
    return predict(model, x)
