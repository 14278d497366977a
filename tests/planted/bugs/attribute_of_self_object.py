"""A trainer that is no module keeps a tensor on the CPU."""

# culprit: self.weights
# says: attribute of Trainer
import torch

import devicekit


class Trainer:
    def __init__(self):
        self.weights = torch.tensor([1.0, 2.0])

    @devicekit.guard
    def loss(self, errors):
        return (errors * self.weights).sum()


def main(device):
    trainer = Trainer()
    return trainer.loss(torch.ones(2, device=device))
