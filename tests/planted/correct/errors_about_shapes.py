"""An error about shapes passes as it is."""

import torch

import devicekit


@devicekit.guard
def multiply(a, b):
    spare = torch.zeros(3)  # on the CPU, and none of the error's business
    return a @ b + spare.sum()


def main(device):
    try:
        multiply(torch.ones(2, 3, device=device), torch.ones(2, 3, device=device))
    except RuntimeError as error:
        return torch.tensor(type(error) is RuntimeError)
    return torch.tensor(False)
