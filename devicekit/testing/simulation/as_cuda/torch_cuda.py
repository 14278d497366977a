"""What `torch.cuda` keeps in Python: whether it is initialised, streams, events, legacy types."""

import sys
from types import SimpleNamespace
from typing import Any

import torch

from devicekit.testing.simulation import processes, rng, state, streams, tensors
from devicekit.testing.simulation.as_cuda import low_level
from devicekit.testing.simulation.patching import Patches

__all__ = ["Event", "install"]


def install(patches: Patches) -> None:
    """Replace the state and the classes of `torch.cuda`."""
    cuda = torch.cuda
    config = state.active()
    generators = tuple(rng.default(index) for index in range(config.count))
    for name, value in {
        "_initialized": False,
        "_is_in_bad_fork": processes.in_bad_fork,
        # What torch has queued for the day CUDA is initialised is about the real one.
        "_queued_calls": [],
        "_lazy_seed_tracker": type(cuda._lazy_seed_tracker)(),
        "_lazy_init": _lazy_init(cuda._lazy_init),
        "_cached_device_count": None,
        # -1: NVML has no say, ask the C function; so `CUDA_VISIBLE_DEVICES` hides nothing here.
        "_device_count_nvml": lambda: -1,
        "_device_count_amdsmi": lambda: -1,
        "_cudart": low_level.runtime,
        "_get_device_properties": low_level.properties,
        "_exchange_device": low_level.NAMESPACE["exchangeDevice"],
        "_maybe_exchange_device": low_level.NAMESPACE["maybeExchangeDevice"],
        "default_generators": generators,
    }.items():
        patches.set(cuda, name, value)
    for name, value in {"Stream": streams.Stream, "Event": Event}.items():
        patches.set(cuda, name, value)
        patches.set(cuda.streams, name, value)
    for owner in (cuda, cuda.graphs):
        patches.set(owner, "CUDAGraph", _refusing("CUDAGraph", "CUDA graphs"))
        patches.set(owner, "graph_pool_handle", _refusing("graph_pool_handle", "CUDA graphs"))
    for owner in (cuda, cuda.streams):
        patches.set(
            owner, "ExternalStream", _refusing("ExternalStream", "Streams of other libraries")
        )
    for owner in (cuda, cuda.memory):
        patches.set(owner, "MemPool", _refusing("MemPool", "Memory pools"))
    patches.set(cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False)
    patches.set(cuda.nvtx, "_nvtx", _nvtx())
    for name, dtype in _LEGACY.items():
        patches.set(cuda, name, _LegacyType(name, (), {"dtype": dtype, "__module__": "torch.cuda"}))
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    # It warns that torch was built without NCCL; `DataParallel` adds by itself then.
    patches.set(cuda.nccl, "is_available", lambda tensors: False)
    # It warns that torch was built without cuDNN; the simulation's RNNs do not use it.
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)


def _lazy_init(torchs_own: Any) -> Any:
    """Return a `_lazy_init` that tells who calls it.

    Python calls it to initialise CUDA, which is fine. C++ calls it when it is about to use a device
    "cuda" that nothing has translated; without CUDA that can end in an abort of the process.
    """

    def lazy_init() -> None:
        # A Python caller has the name in its code.
        if "_lazy_init" in sys._getframe(1).f_code.co_names:
            torchs_own()
            return
        state.active()
        raise NotImplementedError(
            'the device "cuda" reached torch\'s C++ code through a function that the simulation '
            "does not know. A function that was imported before `simulate` began and is kept "
            "somewhere else than in a module (in a class, a default argument, a partial) is one: "
            "begin the simulation first, or look the function up in `torch` when it is called"
        )

    return lazy_init


class Event(streams.Event):
    """`torch.cuda.Event`, whose first argument is not the device."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> "Event":
        """Make an event."""
        return super().__new__(cls, enable_timing=enable_timing)

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> "Event":
        """Refuse: the simulation shares no events between processes."""
        raise NotImplementedError("the simulated accelerator shares no events between processes")


def _refusing(name: str, what: str) -> type:
    """Return a class that cannot be instantiated; a class, because it is used in annotations."""

    def refuse(cls: type, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(f"{what} are not simulated; run this on a real GPU")

    return type(name, (), {"__new__": refuse, "__module__": "torch.cuda"})


def _nvtx() -> SimpleNamespace:
    """Return NVTX functions that mark nothing."""
    names = "rangePushA rangePop markA rangeStartA rangeEnd deviceRangeStart deviceRangeEnd"
    return SimpleNamespace(**dict.fromkeys(names.split(), lambda *args: 0))


# ------------------------------------------------------------------ torch.cuda.FloatTensor

_LEGACY = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _LegacyType(type):
    """The type of `torch.cuda.FloatTensor` and its like: for `isinstance`, and to make tensors."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and (
            tensors.is_on_device(instance) and instance.dtype is cls.dtype
        )

    def __call__(cls, *args: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(size, dtype=cls.dtype, device="cuda")
