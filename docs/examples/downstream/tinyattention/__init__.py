"""Causal attention with a bias that falls with distance: a sample library with a device bug."""

import torch
from torch import nn


class Attention(nn.Module):
    """One head of attention that looks back only.

    Args:
        width: Features of each token.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.slope = 0.5

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mixes each token with those before it.

        Args:
            tokens: float[batch, length, width].
        """
        query, key, value = self.project(tokens).chunk(3, dim=-1)
        scores = query @ key.transpose(-1, -2) / tokens.shape[-1] ** 0.5
        scores = scores + self.bias(tokens.shape[1])
        return scores.softmax(-1) @ value

    def bias(self, length: int) -> torch.Tensor:
        """What is added to the scores, float[length, length]; minus infinity ahead."""
        position = torch.arange(length)  # the bug: always on the CPU
        distance = position[:, None] - position
        return (-self.slope * distance).masked_fill(distance < 0, float("-inf"))
