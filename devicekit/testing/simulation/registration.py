"""The one registration of the backend with torch, and what is replaced while it is in use."""

import sys
from typing import Any

import torch

from devicekit.testing.simulation import (
    autocast,
    autograd,
    factories,
    fused,  # noqa: F401 - it fills engine.REPLACED
    layouts,
    module,
    operators,
    pinning,
    private,
    recurrent,
    rng,
    state,
    storages,
    streams,
)
from devicekit.testing.simulation.engine import REPLACED, kernel_of, run_unknown
from devicekit.testing.simulation.patching import Patches

__all__ = ["install", "register"]

# Torch drops the kernels of a library that is collected.
_libraries: list[torch.library.Library] = []

# Operators that C++ handles for every backend, and families that CUDA alone has.
_LEFT_TO_TORCH = ("copy_", "set_", "resize_", "_to_copy", "empty_like")
_NOT_OURS = ("sparse", "cudnn", "nested")


class _Hooks(private.BackendHooks or object):  # type: ignore[misc]
    def is_available(self) -> bool:
        return state.config is not None

    def has_primary_context(self, device_index: int) -> bool:
        return state.config is not None

    def is_built(self) -> bool:
        return True


# Held by C++ as bare pointers.
_hooks, _guard = _Hooks(), autograd.Guard()


def register(name: str) -> None:
    """Register the backend under a name, once for the process.

    Raises:
        RuntimeError: Another backend, or this one under another name, is registered already.
    """
    if state.backend == name:
        return
    taken = private.backend_name()
    if state.backend or taken != "privateuseone":
        raise RuntimeError(
            f"cannot register the simulated accelerator as {name!r}: torch allows one such backend "
            f"in a process, and {state.backend or taken!r} is registered. Use that name, or a new "
            f"process"
        )
    if hasattr(torch, name):
        raise RuntimeError(
            f"cannot register the simulated accelerator as {name!r}: `torch.{name}` exists. Use "
            f"another name"
        )
    built = private.real_accelerator()
    state.backend = name
    private.setup_backend(name, module.make(name), _hooks, _guard)
    sys.modules[f"torch.{name}"] = getattr(torch, name)
    _register_kernels()
    layouts.register(_library)
    _register_autocast()
    # For good, each silent outside a simulation: torch has no way to take them back.
    torch.serialization.register_package(1, storages.location, storages.restore)
    torch.UntypedStorage.__new__ = storages.new  # type: ignore[assignment]
    _answer_as_before(built)


def _answer_as_before(built: torch.device | None) -> None:
    """Let `torch.accelerator` answer as before the registration while no simulation is active.

    C++ answers with the last registered backend, ours, from now on.

    Args:
        built: What C++ answered before: the accelerator that this torch was built for.
    """
    accelerator = torch.accelerator
    torchs_own = accelerator.current_stream

    def current_accelerator(check_available: bool = False) -> torch.device | None:
        if state.config is not None:
            return torch.device(state.config.name)
        if built is None or not check_available:
            return built
        return built if torch.get_device_module(built).is_available() else None

    def current_stream(device: Any = None) -> torch.Stream:
        # A function that was compiled during a simulation asks, before it is compiled again.
        if isinstance(device, torch.device) and device.type == state.backend:
            return streams.Stream(stream_id=0, device_index=device.index or 0)
        return torchs_own(device)

    accelerator.current_accelerator = current_accelerator
    accelerator.current_stream = current_stream


def _library(namespace: str) -> Any:
    library: Any = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    return library


def _register_kernels() -> None:
    _library("_").fallback(run_unknown, "PrivateUse1")
    library = _library("aten")
    for name, function in factories.KERNELS.items():
        library.impl(name, function, "PrivateUse1")
    for op in REPLACED:
        library.impl(_name(op), kernel_of(op), "PrivateUse1")
    for op in _own_on_cuda():
        library.impl(_name(op), kernel_of(op), "PrivateUse1")
    # `resolve_conj` of a copy that itself resolves conj would recurse until the stack overflows.
    for key in ("Conjugate", "Negative"):
        library.impl("_copy_from", torch.library.fallthrough_kernel, key)


def _name(op: Any) -> str:
    return str(op.name()).split("::", 1)[1]


def _own_on_cuda() -> list[Any]:
    """Return the operators that CUDA does not decompose, so that the same check is made."""
    found = []
    for name, operator in operators.table().items():
        base, _, overload = name.partition(".")
        if not operator.on_cuda or name in factories.KERNELS or base in _LEFT_TO_TORCH:
            continue
        op = getattr(getattr(torch.ops.aten, base, None), overload or "default", None)
        if op is None or op in REPLACED or any(part in base for part in _NOT_OURS):
            continue
        if any(a.is_out for a in op._schema.arguments):
            continue
        if private.has_kernel_for(op.name(), "CPU") or base.startswith("_foreach"):
            found.append(op)
    return found


def _register_autocast() -> None:
    _library("_").fallback(torch.library.fallthrough_kernel, autocast.KEY)
    library = _library("aten")
    for name, function in autocast.kernels():
        library.impl(name, function, autocast.KEY)


# ------------------------------------------------------------------ while a simulation is active


def install(patches: Patches) -> None:
    """Replace the parts of torch's Python that have no hook for a backend."""
    storages.install(patches)
    pinning.install(patches)
    recurrent.install(patches)
    rng.install(patches)
    patches.set(torch, "Stream", streams.AnyStream)
    patches.set(torch, "Event", streams.AnyEvent)
    patches.set(torch.autograd.graph, "_engine_run_backward", autograd.run_backward)
    patches.set(torch.autograd, "_engine_run_backward", autograd.run_backward)
    for name, function in {
        "current_device_index": module.current_device,
        "current_device_idx": module.current_device,
        "set_device_index": module.set_device,
        "set_device_idx": module.set_device,
        "synchronize": streams.synchronize,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "device_index": module.Device,
        "empty_cache": module.empty_cache,
        "memory_stats": module.memory_stats,
        "memory_allocated": module.memory_allocated,
        "max_memory_allocated": module.max_memory_allocated,
        "memory_reserved": module.memory_reserved,
        "max_memory_reserved": module.max_memory_reserved,
        "reset_peak_memory_stats": module.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": module.reset_accumulated_memory_stats,
        "get_memory_info": module.mem_get_info,
    }.items():
        if hasattr(torch.accelerator, name):
            patches.set(torch.accelerator, name, function)
