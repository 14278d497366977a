"""Errors of the user's own pass as they are, whatever they say."""

import torch

import devicekit


@devicekit.guard
def refuse(x, kind):
    raise kind("expected all tensors to be on the same device, but found sim:0 and cpu")


def main(device):
    x = torch.ones(2, device=device)
    found = []
    for kind in (RuntimeError, ValueError, TypeError, AssertionError, KeyError):
        try:
            refuse(x, kind)
        except Exception as error:
            found.append(type(error) is kind and error.__cause__ is None)
    return torch.tensor(found)
