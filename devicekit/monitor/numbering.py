"""Giving each GPU the index that CUDA has for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from devicekit.monitor import visible
from devicekit.monitor.data import Gpu
from devicekit.monitor.own import torch_cuda

__all__ = ["number_gpus"]


def number_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Give each GPU and MIG device the index that CUDA has for it."""
    parts = [part for gpu in gpus for part in gpu.mig_devices]
    order = _torch_order()
    if order is None and gpus:
        order = visible.cuda_order(
            [(gpu.uuid, gpu.name) for gpu in gpus],
            [part.uuid for part in parts if part.uuid],
            environ,
            visible.driver_order,
        )

    def numbered(gpu: Gpu) -> Gpu:
        if "uuid" in gpu.reasons:
            return _without_index(gpu, gpu.reasons["uuid"])
        if order is None:
            return _without_index(gpu, "cuda_index_unknown")
        for index, uuid in enumerate(order):
            if gpu.uuid is not None and visible.same_uuid(uuid, gpu.uuid):
                return replace(gpu, cuda_index=index)
        return _without_index(gpu, "mig" if gpu.mig_devices else "masked")

    return tuple(
        replace(numbered(gpu), mig_devices=tuple(numbered(part) for part in gpu.mig_devices))
        for gpu in gpus
    )


def _without_index(gpu: Gpu, reason: str) -> Gpu:
    return replace(gpu, reasons={**gpu.reasons, "cuda_index": reason})


def _torch_order() -> list[str] | None:
    """Return the UUIDs of torch's CUDA devices, if this process uses CUDA already."""
    cuda = torch_cuda()
    if cuda is None:
        return None
    found = [
        getattr(cuda.get_device_properties(index), "uuid", None)
        for index in range(cuda.device_count())
    ]
    return None if None in found else [str(uuid) for uuid in found]
