"""A dataclass is moved as a whole."""

from dataclasses import dataclass

import torch

import devicekit


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "train"


@devicekit.guard
def error(batch):
    return (batch.x - batch.y).abs().sum()


def main(device):
    return error(devicekit.to_device(Batch(torch.ones(2), torch.zeros(2)), device))
