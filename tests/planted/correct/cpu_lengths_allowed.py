"""Lengths have to be on the CPU."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence

import devicekit


@devicekit.guard(allow="batch['lengths']")
def pack(batch):
    return pack_padded_sequence(batch["x"], batch["lengths"], batch_first=True).data


def main(device):
    x = torch.arange(24.0, device=device).reshape(2, 3, 4)
    return pack({"x": x, "lengths": torch.tensor([3, 2])})
