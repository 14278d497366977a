"""A new head for fine-tuning is put on after the model was moved."""

# culprit: self.head
# says: which is otherwise on
import torch
from torch import nn

import devicekit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 10)

    @devicekit.guard
    def forward(self, x):
        return self.head(self.body(x))


def main(device):
    torch.manual_seed(0)
    model = Net().to(device)
    model.head = nn.Linear(4, 2)
    x = torch.ones(2, 3, device=device)
    return model(x)
