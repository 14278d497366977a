"""An asynchronous function is given what was left on the CPU."""

# culprit: request
# says: float32[3]
import asyncio

import torch
from torch import nn

import devicekit


class Server:
    def __init__(self, device):
        self.model = nn.Linear(3, 3).to(device)

    @devicekit.guard
    async def answer(self, model, request):
        await asyncio.sleep(0)
        return model(request)


async def serve(device):
    server = Server(device)
    request = torch.ones(3)
    return await server.answer(server.model, request)


def main(device):
    torch.manual_seed(0)
    return asyncio.run(serve(device))
