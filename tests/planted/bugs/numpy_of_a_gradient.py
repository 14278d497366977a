"""A result with a history is turned into an array."""

# culprit: loss
# says: can't convert
import torch

import devicekit


@devicekit.guard
def value(w):
    loss = (w * 2).sum()
    loss.backward()
    return torch.tensor(loss.detach().numpy())


def main(device):
    return value(torch.ones(3, device=device, requires_grad=True))
