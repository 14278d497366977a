"""The tests of a library that has never seen a GPU."""

import torch
from tinyattention import Attention


def test_looks_back_only(device):
    attention = Attention(8).to(device)
    tokens = torch.randn(2, 5, 8, device=device)
    changed = tokens.clone()
    changed[:, -1] = 0
    assert torch.equal(attention(tokens)[:, :-1], attention(changed)[:, :-1])


def test_projection_keeps_the_device(device):
    attention = Attention(8).to(device)
    assert attention.project(torch.ones(1, 8, device=device)).device == device


def test_width():
    assert Attention(4).project.out_features == 12
