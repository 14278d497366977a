"""A guarded generator is sent values and returns one."""

import torch

import devicekit


@devicekit.guard
def running_sum(start):
    total = start
    while True:
        value = yield total
        if value is None:
            return total
        total = total + value


def main(device):
    sums = running_sum(torch.zeros(2, device=device))
    found = [next(sums), sums.send(torch.ones(2, device=device))]
    try:
        sums.send(None)
    except StopIteration as stop:
        found.append(stop.value)
    return torch.stack(found)
