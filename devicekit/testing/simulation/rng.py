"""One random generator per simulated device, so that the CPU's stream is left alone.

The generators are CPU generators: the numbers are the CPU's for the same seed, which a GPU's are not.
"""

import ctypes
from typing import Any

import torch

from devicekit.testing.simulation import state

__all__ = ["SimulatedGenerator", "default", "for_kernel", "seed_all"]

_CpuGenerator = torch._C.Generator
_generators: list[torch.Generator] = []
_known: set[int] = set()


def _address(generator: torch.Generator) -> int | None:
    # C++ gives the same generator a new Python object now and then; what stays is the address that
    # the object holds right after its header.
    return ctypes.c_void_p.from_address(id(generator) + object.__basicsize__).value


def default(index: int) -> torch.Generator:
    """Return the default generator of a device, seeded like torch's own when it is first asked for."""
    while len(_generators) <= index:
        made = _CpuGenerator()
        made.manual_seed(torch.initial_seed())
        _known.add(_address(made) or 0)
        _generators.append(made)
    return _generators[index]


def seed_all(seed: int) -> None:
    """Seed the default generator of every device, as `torch.manual_seed` asks."""
    for index in range(state.active().count):
        default(index).manual_seed(seed)


def for_kernel(generator: torch.Generator | None, index: int) -> torch.Generator:
    """Return the generator that a kernel on device `index` draws from.

    Raises:
        RuntimeError: The caller gave one of another device, in CUDA's words.
    """
    if generator is None:
        return default(index)
    if _address(generator) not in _known:
        name = state.shown(state.device(index)).type
        raise RuntimeError(f"Expected a '{name}' device type for generator but found 'cpu'")
    return generator


class _AnyGenerator(type(_CpuGenerator)):  # type: ignore[misc]
    """`isinstance(g, torch.Generator)` holds for every generator, also for those C++ makes."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _CpuGenerator)


class SimulatedGenerator(_CpuGenerator, metaclass=_AnyGenerator):
    """What `torch.Generator` is while a simulation is active: it also takes a simulated device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make a generator for a device, of torch's own class unless it is a simulated one."""
        if isinstance(device, int):
            device = state.device(device)
        device = torch.device(device)
        if device.type == "cpu":  # also in a forked process, which may not ask for the simulation
            plain = _CpuGenerator(device)
            _known.discard(_address(plain) or 0)  # the address of one that has died, used again
            return plain
        if device.type not in (state.backend, state.active().name):
            return _CpuGenerator(device)
        made = super().__new__(cls, "cpu")
        made._index = state.resolve(device)
        _known.add(_address(made) or 0)
        return made

    def __init__(self, device: Any = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the user sees it."""
        return state.shown(state.device(self._index))
