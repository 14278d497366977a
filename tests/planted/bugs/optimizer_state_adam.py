"""Training goes on after the model was moved; the optimizer's state was not."""

# culprit: optimizer.state[model.weight]['exp_avg']
# says: model.weight
import torch
from torch import nn

import devicekit


@devicekit.guard
def train(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x = torch.ones(2, 3)
    for target in ("cpu", device):
        model.to(target)
        optimizer.zero_grad()
        model(x.to(target)).sum().backward()
        optimizer.step()
    return model.weight.detach()


def main(device):
    return train(device)
