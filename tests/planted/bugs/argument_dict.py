"""One entry of a dictionary was forgotten."""

# culprit: batch['mask']
# says: float32[2, 3]
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    @devicekit.guard
    def forward(self, batch):
        return self.fc(batch["image"] * batch["mask"])


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    batch = {"image": torch.ones(2, 3), "mask": torch.ones(2, 3)}
    batch["image"] = batch["image"].to(device)
    return model(batch)
