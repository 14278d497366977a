"""What this process itself holds on the GPUs, as torch counts it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from devicekit.monitor.data import Gpu, OwnMemory

__all__ = ["own_memory", "torch_cuda"]


def torch_cuda() -> Any:
    """Return `torch.cuda` if this process uses CUDA already, else `None`."""
    # A torch whose import failed half-way may have no `cuda`.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def own_memory(gpus: Sequence[Gpu]) -> tuple[OwnMemory, ...]:
    """Return what this process holds on each CUDA device, without initialising CUDA."""
    parts = {
        part.cuda_index: part
        for gpu in gpus
        for part in (gpu, *gpu.mig_devices)
        if part.cuda_index is not None
    }
    cuda = torch_cuda()
    if cuda is None:
        code = "cuda_not_initialized" if "torch" in sys.modules else "torch_not_loaded"
        keys = [key for key in OwnMemory.__dataclass_fields__ if key.endswith("_bytes")]
        nothing = dict.fromkeys(keys, code)
        return tuple(OwnMemory(cuda_index=index, reasons=nothing) for index in sorted(parts))
    return tuple(_own(cuda, index, parts.get(index)) for index in range(cuda.device_count()))


def _own(cuda: Any, index: int, gpu: Gpu | None) -> OwnMemory:
    mine = [process for process in gpu.processes if process.is_this_process] if gpu else []
    process = mine[0].memory_used_bytes if mine else None
    reserved = cuda.memory_reserved(index)
    reasons = {}
    if process is None:
        why = mine[0].reasons["memory_used_bytes"] if mine else "not_found"
        reasons = {"process_bytes": why, "context_bytes": why}
    return OwnMemory(
        cuda_index=index,
        allocated_bytes=cuda.memory_allocated(index),
        reserved_bytes=reserved,
        peak_allocated_bytes=cuda.max_memory_allocated(index),
        process_bytes=process,
        context_bytes=None if process is None else max(process - reserved, 0),
        reasons=reasons,
    )
