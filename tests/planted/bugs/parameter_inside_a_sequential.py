"""A layer is appended to a Sequential after the move; torch's own code runs it."""

# culprit: model[2].weight
# says: parameter of Sequential, which is otherwise on
import torch
from torch import nn

import devicekit


def main(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU()).to(device)
    model.append(nn.Linear(4, 1))

    @devicekit.guard
    def predict(x):
        return model(x)

    return predict(torch.ones(2, 3, device=device))
