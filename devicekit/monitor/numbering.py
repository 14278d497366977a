"""Giving each GPU the index that CUDA has for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from devicekit.monitor import visible
from devicekit.monitor.data import Gpu
from devicekit.monitor.own import torch_cuda

__all__ = ["Orders", "number_gpus"]

Orders = dict[tuple[object, ...], list[str] | None]
"""What the CUDA driver said, for each set of devices and variables."""


def number_gpus(gpus: Sequence[Gpu], environ: Mapping[str, str], orders: Orders) -> tuple[Gpu, ...]:
    """Give each GPU and MIG device the index that CUDA has for it.

    Args:
        gpus: The GPUs in NVML's order.
        environ: The environment variables of the process.
        orders: Answers of the CUDA driver, which takes a process to ask; a new one is added.
    """
    parts = [part for gpu in gpus for part in gpu.mig_devices]

    def ask() -> list[str] | None:
        variables = (environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER"))
        key = (*variables, *(part.uuid for part in (*gpus, *parts)))
        if key not in orders:
            orders[key] = visible.driver_order()
        return orders[key]

    order = _torch_order()
    if order is None and gpus:
        order = visible.cuda_order(
            [(gpu.uuid, gpu.name) for gpu in gpus],
            [part.uuid for part in parts if part.uuid],
            environ,
            ask,
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
