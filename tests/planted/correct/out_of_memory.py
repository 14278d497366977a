"""Running out of memory passes as it is."""

import torch

import devicekit


@devicekit.guard
def large(x):
    raise torch.OutOfMemoryError("CUDA out of memory; tensors must be on the same device")


def main(device):
    try:
        large(torch.ones(2, device=device))
    except torch.OutOfMemoryError as error:
        return torch.tensor(error.__cause__ is None)
    return torch.tensor(False)
