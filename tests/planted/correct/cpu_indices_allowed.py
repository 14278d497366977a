"""CPU indices into a tensor of the device, which torch accepts."""

import torch

import devicekit


@devicekit.guard(allow=("indices",))
def rows(table, indices):
    return table[indices]


def main(device):
    return rows(torch.arange(6.0, device=device).reshape(3, 2), torch.tensor([0, 2]))
