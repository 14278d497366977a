"""Predictions on the device, targets on the CPU."""

# culprit: target
# says: float32[4]
import torch

import devicekit


@devicekit.guard
def mean_error(prediction, target):
    return (prediction - target).abs().mean()


def main(device):
    prediction = torch.arange(4.0, device=device)
    target = torch.ones(4)
    return mean_error(prediction, target)
