"""As above, with momentum, in a function of its own."""

# culprit: optimizer.state[model.weight]['momentum_buffer']
# says: float32[1, 3]
import torch
from torch import nn

import devicekit


@devicekit.guard
def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones(2, 3)
    step(model, optimizer, x)
    model.to(device)
    step(model, optimizer, x.to(device))
    return model.weight.detach()
