"""A loader of dictionaries feeds a guarded model."""

# culprit: image
# says: from the DataLoader `loader`
import torch
from torch import nn
from torch.utils.data import DataLoader

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 1)

    @devicekit.guard
    def forward(self, image):
        return self.fc(image)


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    samples = [{"image": torch.ones(3) * i, "label": i} for i in range(4)]
    loader = DataLoader(samples, batch_size=2)
    total = 0.0
    for batch in loader:
        total = total + model(batch["image"]).sum()
    return total
