"""One random generator per simulated device, so that the CPU's stream is left alone.

The generators are CPU generators: the numbers are the CPU's for the same seed, which a GPU's are
not.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataset

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.patching import Patches

__all__ = ["SimulatedGenerator", "default", "for_kernel", "install", "seed_all"]

_FUNCTIONS = ["rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial"]
_METHODS = [
    "normal_",
    "uniform_",
    "random_",
    "bernoulli_",
    "exponential_",
    "geometric_",
    "cauchy_",
    "log_normal_",
    "bernoulli",
    "multinomial",
]


def install(patches: Patches) -> None:
    """Replace `torch.Generator`, and let the CPU's functions refuse the device's generators."""
    patches.set(torch, "Generator", SimulatedGenerator)
    for name in _FUNCTIONS:
        patches.set(torch, name, _checking(getattr(torch, name)))
    # `random_split` has the name from an import of its own.
    patches.set(torch.utils.data.dataset, "randperm", torch.randperm)
    for name in _METHODS:
        patches.set(torch.Tensor, name, _checking(getattr(torch.Tensor, name)))


_CpuGenerator: Any = torch._C.Generator
_generators: list[torch.Generator] = []
_known: set[int] = set()


def _address(generator: torch.Generator) -> int | None:
    # C++ gives the same generator a new Python object now and then; what stays is the address that
    # the object holds right after its header.
    return ctypes.c_void_p.from_address(id(generator) + object.__basicsize__).value


def default(index: int) -> torch.Generator:
    """Return the default generator of a device, seeded like torch's own on first use."""
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


class SimulatedGenerator(_CpuGenerator, metaclass=_AnyGenerator):  # type: ignore[misc]
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
    def device(self) -> torch.device:
        """The device as the user sees it."""
        return state.shown(state.device(self._index))


# The generator of a device is one of the CPU's in C++, which would therefore accept it for the CPU.
@functools.cache
def _checking(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        if "generator" in kwargs and type(kwargs["generator"]) is SimulatedGenerator:
            _check_place(kwargs["generator"], args, kwargs.get("device"))
        return function(*args, **kwargs)

    private.stand_in(checking, function)
    return checking


def _check_place(generator: SimulatedGenerator, args: tuple[Any, ...], device: Any) -> None:
    """Check that a call with a device's generator makes or fills a tensor of the device.

    Raises:
        RuntimeError: It is for the CPU, in torch's words.
    """
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if tensors:
        kinds = {private.tensor_device(x).type for x in tensors}
    else:
        kinds = {torch.device(torch.get_default_device() if device is None else device).type}
    if not kinds & {state.backend, state.active().name}:
        raise RuntimeError(
            f"Expected a 'cpu' device type for generator but found '{generator.device.type}'"
        )
