"""Gradient clipping and a schedule of the learning rate."""

import torch
from torch import nn

import devicekit


@devicekit.guard
def train(model, optimizer, scheduler, x):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return model.weight.detach()


def main(device):
    torch.manual_seed(0)
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return train(model, optimizer, scheduler, torch.ones(2, 3, device=device))
