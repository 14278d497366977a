"""A saved tensor is loaded to where it was saved: the CPU."""

# culprit: mean
# says: loaded without map_location=
import io

import torch

import devicekit


@devicekit.guard
def centre(x, file):
    mean = torch.load(file)
    return x - mean


def main(device):
    file = io.BytesIO()
    torch.save(torch.ones(3), file)
    file.seek(0)
    return centre(torch.ones(2, 3, device=device), file)
