"""Lengths have to be on the CPU, and are not."""

# culprit: lengths
# says: should be a 1D CPU int64 tensor
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import devicekit


@devicekit.guard
def pack(x, lengths):
    packed = pack_padded_sequence(x, lengths, batch_first=True)
    return packed.data


def main(device):
    x = torch.ones(2, 3, 4, device=device)
    return pack(x, torch.tensor([3, 2], device=device))
