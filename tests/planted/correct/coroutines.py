"""Guarded coroutines run side by side."""

import asyncio

import torch

import devicekit


@devicekit.guard
async def double(x):
    await asyncio.sleep(0)
    return x * 2


async def both(device):
    return await asyncio.gather(*(double(torch.full((2,), i, device=device)) for i in (1.0, 2.0)))


def main(device):
    return torch.stack(asyncio.run(both(device)))
