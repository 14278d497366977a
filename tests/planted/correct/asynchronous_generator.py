"""A guarded asynchronous generator is sent values."""

import asyncio

import torch

import devicekit


@devicekit.guard
async def scaled(x):
    factor = 1
    while factor is not None:
        factor = yield x * factor


async def collect(device):
    stream = scaled(torch.ones(2, device=device))
    found = [await anext(stream), await stream.asend(3)]
    await stream.aclose()
    return found


def main(device):
    return torch.stack(asyncio.run(collect(device)))
