"""A batch is spread over keyword arguments."""

# culprit: mask
# says: float32[3]
import torch

import devicekit


@devicekit.guard
def masked_sum(values, mask):
    return (values * mask).sum()


def main(device):
    batch = {"values": torch.ones(3, device=device), "mask": torch.ones(3)}
    return masked_sum(**batch)
