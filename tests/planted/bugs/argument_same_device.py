"""Two tensors are checked by hand."""

# culprit: offset
# says: same_device: expected all tensors to be on the same device
import torch

import devicekit


def main(device):
    base = torch.ones(3, device=device)
    offset = torch.ones(3)
    devicekit.same_device(base, offset)
    return base + offset
