"""Static and class methods, decorated on either side."""

import torch

import devicekit


class Tools:
    @devicekit.guard
    @staticmethod
    def add(a, b):
        return a + b

    @staticmethod
    @devicekit.guard
    def subtract(a, b):
        return a - b

    @devicekit.guard
    @classmethod
    def double(cls, a):
        return cls.add(a, a)

    @classmethod
    @devicekit.guard
    def nothing(cls, a):
        return cls.subtract(a, a)


def main(device):
    x = torch.ones(2, device=device)
    return torch.stack([Tools.double(x), Tools.nothing(x), Tools().add(x, x)])
