"""A PackedSequence has its batch sizes on the CPU by contract."""

import torch
from torch.nn.utils.rnn import pack_sequence

import devicekit


@devicekit.guard
def double(packed):
    return packed.data * 2


def main(device):
    return double(pack_sequence([torch.ones(3), torch.ones(2)]).to(device))
