"""`torch.sim`: the device module, which torch and its users ask about the devices."""

from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import torch

from devicekit.testing.simulation import memory, processes, rng, state, streams
from devicekit.testing.simulation.state import current, resolve

__all__ = ["make"]

NAME = "Simulated accelerator"
CAPABILITY = (8, 0)
"""The compute capability of a simulated device, that of an A100: it has bfloat16 and TF32."""


def make(name: str) -> ModuleType:
    """Make the module that torch registers as `torch.<name>`."""
    module = ModuleType(f"torch.{name}", "The simulated accelerator of devicekit.testing.")
    for function in _FUNCTIONS:
        setattr(module, function.__name__, function)
    vars(module).update(
        device=Device,
        Stream=streams.Stream,
        Event=streams.Event,
        StreamContext=streams.StreamContext,
        current_stream=streams.current_stream,
        default_stream=streams.default_stream,
        set_stream=streams.set_stream,
        stream=streams.StreamContext,
        synchronize=streams.synchronize,
        _lazy_init=init,
        _get_device_index=_get_device_index,
        _is_in_bad_fork=processes.in_bad_fork,
    )
    return module


# ------------------------------------------------------------------ which devices


def is_available() -> bool:
    """Whether a simulation is active."""
    return state.config is not None


def is_initialized() -> bool:
    """Whether a simulation is active: there is nothing to start up."""
    return state.config is not None


def init() -> None:
    """Do nothing: there is nothing to start up."""


def device_count() -> int:
    """Return the number of simulated devices, 0 outside a simulation."""
    return state.config.count if state.config is not None else 0


def current_device() -> int:
    """Return the index of the calling thread's current device."""
    return current.index


def set_device(device: Any) -> None:
    """Make a device the calling thread's current one; a negative index does nothing."""
    if isinstance(device, int) and device < 0:
        return
    current.index = resolve(device)


def exchange_device(device: int) -> int:
    """Make a device the current one, and return the index of the one before."""
    before = current.index
    set_device(device)
    return before


def _get_device_index(device: Any = None, optional: bool = False, allow_cpu: bool = False) -> int:
    return resolve(device)


class Device:
    """A context manager that makes a device the thread's current one; None changes nothing."""

    def __init__(self, device: Any) -> None:
        self.index = -1 if device is None else resolve(device)

    def __enter__(self) -> None:
        self._before = exchange_device(self.index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current.index = self._before


def device_of(tensor: torch.Tensor) -> Device:
    """Return the context manager for the device of a tensor; a CPU tensor changes nothing."""
    simulated = tensor.device.type in (state.backend, state.active().name)
    return Device(tensor.device if simulated else None)


def get_device_name(device: Any = None) -> str:
    """Return the name of a device."""
    resolve(device)
    return NAME


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of a device."""
    resolve(device)
    return CAPABILITY


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """Return name, memory and capability of a device."""
    _, total = memory.free_and_total(resolve(device))
    major, minor = CAPABILITY
    return SimpleNamespace(
        name=NAME,
        total_memory=total,
        major=major,
        minor=minor,
        multi_processor_count=1,
        warp_size=32,
    )


def can_device_access_peer(device: Any, peer: Any) -> bool:
    """Whether one device can reach the memory of another: all can."""
    return resolve(device) != resolve(peer)


# ------------------------------------------------------------------ random numbers


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device; outside a simulation nothing happens."""
    if state.config is not None:
        rng.default(current.index).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices; `torch.manual_seed` calls this."""
    if state.config is not None:
        rng.seed_all(int(seed))


def seed() -> int:
    """Seed the current device from the system, and return the seed."""
    return rng.default(current.index).seed()


def seed_all() -> None:
    """Seed all devices with one number from the system."""
    rng.seed_all(rng.default(0).seed())


def initial_seed() -> int:
    """Return the seed of the current device."""
    return rng.default(current.index).initial_seed()


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of a device's generator, as a CPU tensor."""
    return rng.default(resolve(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set the state of a device's generator."""
    rng.default(resolve(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Set the states of all generators."""
    for index, new_state in enumerate(new_states):
        set_rng_state(new_state, index)


# ------------------------------------------------------------------ memory


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of all living tensors of a device."""
    return memory.allocated(resolve(device))


def max_memory_allocated(device: Any = None) -> int:
    """Return the most bytes alive at once since the last reset."""
    return memory.peak(resolve(device))


def memory_reserved(device: Any = None) -> int:
    """Return the same as `memory_allocated`: nothing is cached."""
    return memory.allocated(resolve(device))


def max_memory_reserved(device: Any = None) -> int:
    """Return the same as `max_memory_allocated`."""
    return memory.peak(resolve(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let the peak start again."""
    memory.reset_peak(resolve(device))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Do nothing: no accumulated figures are kept."""


def empty_cache() -> None:
    """Do nothing: nothing is cached."""


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return free and total bytes of a device."""
    return memory.free_and_total(resolve(device))


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return the figures that the simulation has, under the keys of `torch.cuda.memory_stats`."""
    index = resolve(device)
    alive, most = memory.allocated(index), memory.peak(index)
    return {
        f"{kind}.all.{when}": value
        for kind in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        for when, value in (("current", alive), ("peak", most))
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the figures of `memory_stats` as text."""
    return "\n".join(f"{key}: {value}" for key, value in memory_stats(device).items())


# ------------------------------------------------------------------ types


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that autocast takes; torch asks for it by this name."""
    return [torch.float16, torch.bfloat16, torch.float32]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works: it does."""
    return True


_FUNCTIONS = (
    is_available,
    is_initialized,
    init,
    device_count,
    current_device,
    set_device,
    exchange_device,
    device_of,
    get_device_name,
    get_device_capability,
    get_device_properties,
    can_device_access_peer,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    initial_seed,
    get_rng_state,
    set_rng_state,
    get_rng_state_all,
    set_rng_state_all,
    memory_allocated,
    max_memory_allocated,
    memory_reserved,
    max_memory_reserved,
    reset_peak_memory_stats,
    reset_accumulated_memory_stats,
    empty_cache,
    mem_get_info,
    memory_stats,
    memory_summary,
    get_amp_supported_dtype,
    is_bf16_supported,
)
