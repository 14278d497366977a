"""What type checkers say about DataLoader; never run, only checked."""

from collections.abc import Iterator
from typing import Any, assert_type

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset, RandomSampler, TensorDataset

import devicekit.loader
from devicekit import DataLoader, Device

dataset = TensorDataset(torch.zeros(4))
loader = DataLoader(dataset, batch_size=2)

assert_type(loader, DataLoader[tuple[torch.Tensor, ...]])
theirs: TorchLoader[tuple[torch.Tensor, ...]] = loader
assert_type(loader.device, Device)
assert_type(loader.pin_memory, bool)
assert_type(loader.prefetch, int)
assert_type(len(loader), int)

batches = iter(loader)
assert_type(batches, devicekit.loader.Batches)
assert_type(next(batches), Any)
assert_type(len(batches), int)
batches.close()

DataLoader(
    dataset,
    2,
    False,
    RandomSampler(dataset),
    None,
    4,
    list,
    "auto",
    False,
    1.5,
    print,
    "spawn",
    torch.Generator(),
    prefetch_factor=2,
    persistent_workers=True,
    pin_memory_device="",
    in_order=True,
    device=torch.device("cpu"),
    pack="auto",
    prefetch=2,
    on_device_data="error",
)
DataLoader(dataset, batch_sampler=[[0, 1], [2]], device=Device("cpu"), pack=False, pin_memory=True)
DataLoader(dataset, batch_size=None, device=None)
DataLoader(dataset, device=0)
loader.set_epoch(3)


class Words(Dataset[str]):
    def __getitem__(self, index: int) -> str:
        return str(index)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


assert_type(DataLoader(Words()), DataLoader[str])
assert_type(DataLoader(Stream()), DataLoader[int])

DataLoader(dataset, pack="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
DataLoader(dataset, on_device_data="warn")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
