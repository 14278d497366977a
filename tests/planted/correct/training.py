"""An ordinary training loop over a loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import devicekit


@devicekit.guard
def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main(device):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.rand(8, 3), torch.rand(8, 1)), batch_size=4)
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = [step(model, optimizer, *devicekit.to_device(batch, device)) for batch in loader]
    return torch.stack(losses)
