"""The C functions under `torch.cuda`.

A torch without CUDA lacks them; one with it has its own. They are replaced rather than the Python
functions above them, which then run as torch wrote them: names that a module took from `torch.cuda`
before work as well, and so do the checks and errors in there.
"""

from types import SimpleNamespace
from typing import Any

import torch

from devicekit.testing.simulation import memory, order, private, processes, state, streams
from devicekit.testing.simulation.module import CAPABILITY
from devicekit.testing.simulation.patching import Patches

__all__ = ["NAMESPACE", "install", "properties", "runtime"]


def install(patches: Patches) -> None:
    """Give `torch._C` the functions."""
    for name, function in NAMESPACE.items():
        patches.set(torch._C, f"_cuda_{name}", function)


# ------------------------------------------------------------------ devices


def _get_device_count() -> int:
    # The real one loads the driver, after which a forked process cannot use CUDA.
    processes.poison()
    config = state.config or state.forked
    return config.count if config is not None else 0


def _init() -> None:
    processes.poison()
    state.active()


def _get_device() -> int:
    return state.current.index


def _set_device(index: int) -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    state.current.index = state.resolve(index)


def _exchange_device(index: int) -> int:
    if index < 0:
        return -1
    torch.cuda.init()  # type: ignore[no-untyped-call]
    before = state.current.index
    state.current.index = state.resolve(index)
    return before


def _can_access_peer(device: int, peer: int) -> bool:
    return device != peer


def properties(index: int) -> SimpleNamespace:
    """Return what `torch.cuda.get_device_properties` shows; only the memory is meaningful."""
    return SimpleNamespace(
        name="Simulated CUDA",
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=memory.free_and_total(index)[1],
        multi_processor_count=1,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=101376,
        shared_memory_per_multiprocessor=102400,
        L2_cache_size=1 << 20,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid=f"simulated-{index}",
        pci_bus_id=index,
        pci_device_id=0,
        pci_domain_id=0,
    )


# ------------------------------------------------------------------ streams


def _stream(key: tuple[int, int]) -> tuple[int, int, int]:
    index, stream_id = key
    return stream_id, index, int(private.DeviceType.PrivateUse1.value)


def _get_current_stream(index: int) -> tuple[int, int, int]:
    return _stream(order.current(state.resolve(index)))


def _get_default_stream(index: int) -> tuple[int, int, int]:
    return _stream((state.resolve(index), 0))


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    streams.set_stream(streams.Stream(stream_id=stream_id, device_index=device_index))


def _synchronize() -> None:
    streams.synchronize(state.current.index)


# ------------------------------------------------------------------ memory

_PER_POOL = [
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
    "allocation",
    "segment",
    "active",
    "inactive_split",
]
_LIVE = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")


def _memory_stats(index: int) -> dict[str, Any]:
    """Return the statistics of CUDA's allocator that mean something: bytes, now and peak."""
    current, peak = memory.allocated(index), memory.peak(index)
    live = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
    zero = dict.fromkeys(live, 0)
    stats: dict[str, Any] = {
        name: {
            "all": dict(live if name in _LIVE else zero),
            "small_pool": dict(zero),
            "large_pool": dict(live if name in _LIVE else zero),
        }
        for name in _PER_POOL
    }
    stats |= {name: dict(zero) for name in ("oversize_allocations", "oversize_segments")}
    counters = (
        "num_alloc_retries num_ooms max_split_size num_sync_all_streams num_device_alloc "
        "num_device_free"
    )
    return stats | dict.fromkeys(counters.split(), 0)


def _set_memory_fraction(fraction: float, index: int) -> None:
    """Accept the call: how much memory there is says `simulate(memory=...)`."""


class _Runtime:
    """What stands for the module that `torch.cuda.cudart()` returns."""

    class cudaError(int):
        success = 0

    @staticmethod
    def cudaMemGetInfo(index: int) -> tuple[int, int]:
        return memory.free_and_total(index)

    @staticmethod
    def cudaGetErrorString(code: int) -> str:
        return f"simulated error {code}"

    @staticmethod
    def _success(*args: object) -> int:
        return 0

    cudaProfilerStart = cudaProfilerStop = cudaHostRegister = cudaHostUnregister = _success


runtime = _Runtime()


# ------------------------------------------------------------------ the table


def _nothing(*args: object, **kwargs: object) -> None:
    """Do nothing, where there is nothing to do in a simulation."""


def _refuse(what: str) -> Any:
    def refuse(*args: object, **kwargs: object) -> Any:
        raise NotImplementedError(
            f"the simulated CUDA device has no {what}; run this on a real GPU"
        )

    return refuse


NAMESPACE: dict[str, Any] = {
    "getDeviceCount": _get_device_count,
    "init": _init,
    "getDevice": _get_device,
    "setDevice": _set_device,
    "exchangeDevice": _exchange_device,
    "maybeExchangeDevice": _exchange_device,
    "canDeviceAccessPeer": _can_access_peer,
    "getArchFlags": lambda: f"sm_{CAPABILITY[0]}{CAPABILITY[1]}",
    "synchronize": _synchronize,
    "sleep": _nothing,
    "ipc_collect": _nothing,
    "getCurrentStream": _get_current_stream,
    "getDefaultStream": _get_default_stream,
    # torch._dynamo takes it when it is imported, which an optimizer's first step does.
    "getCurrentRawStream": lambda index: _get_current_stream(index)[0],
    "setStream": _set_stream,
    "getStreamFromExternal": _refuse("streams of other libraries"),
    "isCurrentStreamCapturing": lambda: False,
    "set_sync_debug_mode": _nothing,
    "get_sync_debug_mode": lambda: 0,
    "memoryStats": _memory_stats,
    "resetPeakMemoryStats": memory.reset_peak,
    "resetAccumulatedMemoryStats": _nothing,
    "hostMemoryStats": dict,
    "resetPeakHostMemoryStats": _nothing,
    "resetAccumulatedHostMemoryStats": _nothing,
    "emptyCache": _nothing,
    "setMemoryFraction": _set_memory_fraction,
    "getMemoryFraction": lambda index: 1.0,
    "getAllocatorBackend": lambda: "native",
    "memorySnapshot": _refuse("memory snapshots"),
    "record_memory_history": _nothing,
    "record_memory_history_legacy": _nothing,
    "cudaCachingAllocator_enable": _nothing,
    "cudaCachingAllocator_is_enabled": lambda: True,
    "cudaHostAllocator": _refuse("allocators"),
    "getAllocator": _refuse("allocators"),
    "customAllocator": _refuse("allocators"),
    "changeCurrentAllocator": _refuse("allocators"),
    "cudaCachingAllocator_raw_alloc": _refuse("raw memory"),
    "cudaCachingAllocator_raw_delete": _refuse("raw memory"),
    "getCurrentBlasHandle": _refuse("cuBLAS"),
    "getCurrentSolverHandle": _refuse("cuSOLVER"),
    "jiterator_compile_and_launch_kernel": _refuse("compiler for CUDA kernels"),
}
"""Each function by its name without `_cuda_`. Seen in torch 2.13, 2.14."""
