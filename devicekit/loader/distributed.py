"""One part of the dataset for each process of a distributed run."""

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

__all__ = ["EpochSampler", "world_size"]


def world_size() -> int:
    """The number of processes in the default process group; 1 where there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return 1
    return dist.get_world_size()


class EpochSampler(DistributedSampler[Any]):
    """A `DistributedSampler` that goes on to the next epoch by itself.

    Forgetting `set_epoch` gives the same order in every epoch, silently. Here each iteration uses
    the current epoch and moves on to the next; `set_epoch` still chooses one, to resume a run.
    """

    def __iter__(self) -> Iterator[Any]:
        indices: Iterator[Any] = super().__iter__()
        self.epoch += 1
        return indices
