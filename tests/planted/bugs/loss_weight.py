"""The class weights of a loss stay on the CPU."""

# culprit: criterion
# says: CrossEntropyLoss: 1 buffer
import torch
from torch import nn

import devicekit


@devicekit.guard
def train_step(model, x, y):
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    loss = criterion(model(x), y)
    loss.backward()
    return loss


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to(device)
    x = torch.ones(2, 3, device=device)
    y = torch.tensor([0, 1], device=device)
    return train_step(model, x, y)
