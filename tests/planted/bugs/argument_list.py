"""A list of tensors of which the last was added later."""

# culprit: boxes[2]
# says: float32[1, 4]
import torch

import devicekit


@devicekit.guard
def total_area(boxes):
    return sum(((b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])).sum() for b in boxes)


def main(device):
    boxes = [torch.tensor([[0.0, 0, 2, 3]], device=device) for _ in range(2)]
    boxes.append(torch.tensor([[1.0, 1, 4, 4]]))
    return total_area(boxes)
