"""`simulate`: start an accelerator that this machine does not have."""

import re
from collections import defaultdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from devicekit import compat
from devicekit.testing.simulation import private

if TYPE_CHECKING:
    from devicekit.testing.simulation.state import Config

__all__ = ["Simulation", "simulate"]

# Most modules of the simulation are imported inside functions: they use private names of torch when
# they are imported, and `private.require` has to say first that this torch has them.


def simulate(
    name: str = "sim",
    *,
    count: int = 2,
    float64: bool = True,
    memory: int | None = None,
    async_copies: bool = False,
    allow_real: bool = False,
) -> "Simulation":
    """Start a simulated accelerator, at once and until `.stop()` or the end of a `with` block.

    Tensors on it hold real values, computed by the CPU's kernels; tensors on different devices may
    meet where CUDA allows it, and raise what CUDA raises where it does not.

    Args:
        name: The type of the device: "sim", or "cuda" for code that names CUDA.
        count: How many devices there are, at most 127: torch keeps an index in eight bits.
        float64: Whether the device knows float64; MPS does not.
        memory: The bytes that each device has; more raises `torch.OutOfMemoryError`.
        async_copies: Whether a `non_blocking` copy lands only when it is waited for.
        allow_real: Whether to start also where torch has a real accelerator, which then hides
            behind the simulated one in `torch.accelerator`.

    Returns:
        The running simulation.

    Raises:
        TypeError: An argument has another type.
        ValueError: `name` cannot be the name of a simulated device, `count` is not in 1 to 127, or
            `memory` is less than 1.
        RuntimeError: There is a real accelerator, or another PrivateUse1 backend in this process.
        NotImplementedError: This torch lacks what the simulation needs.

    Example:
        >>> import torch
        >>> from devicekit.testing import simulate
        >>> with simulate() as sim:
        ...     x = torch.ones(2, device=sim.devices[0])
        ...     print((x + x).cpu())
        ...     try:
        ...         x + torch.ones(2)
        ...     except RuntimeError as error:
        ...         print(str(error).splitlines()[0])
        tensor([2., 2.])
        Expected all tensors to be on the same device, but found at least two devices, sim:0 and
        cpu!
    """
    private.require()
    flags: dict[str, object] = {
        "float64": float64,
        "async_copies": async_copies,
        "allow_real": allow_real,
    }
    _check_options(count, memory, flags)
    _check_name(name)
    _refuse_real_accelerator(name, allow_real)
    from devicekit.testing.simulation.state import Config

    return Simulation(Config(name, count, float64, memory, async_copies))


def _check_options(count: object, memory: object, flags: dict[str, object]) -> None:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"`count` must be an int, got {count!r}")
    if not 1 <= count <= _MOST:
        raise ValueError(f"`count` must be 1 or more and at most {_MOST}, got {count!r}")
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int):
            raise TypeError(f"`memory` must be an int, a number of bytes, or None, got {memory!r}")
        if memory < 1:
            raise ValueError(f"`memory` must be a number of bytes, 1 or more, got {memory!r}")
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"`{flag}` must be True or False, got {value!r}")


_MOST = 127


def _check_name(name: object) -> None:
    """Refuse what torch would not take: a name is registered for the rest of the process."""
    if not isinstance(name, str):
        raise TypeError(f'`name` must be text, such as "sim" or "cuda", got {name!r}')
    from devicekit.testing.simulation import state

    if name in ("cuda", state.backend) and name:
        return
    clean = name.strip().lower()
    hint = f", did you mean {clean!r}?" if clean in ("sim", "cuda") else ""
    # c10/core/Device.cpp: the type in a device string.
    if re.fullmatch("[a-z_]+", name) is None:
        raise ValueError(
            f"`name` must consist of small letters and underscores, as torch reads no others in "
            f"the name of a device, got {name!r}{hint}"
        )
    if compat.torch_knows(name):
        raise ValueError(
            f'`name` must be "cuda" or the name of no existing type of device, got {name!r}, '
            f"which torch has already"
        )
    for owner in (torch, torch.Tensor, torch.nn.Module, torch.UntypedStorage):
        for attribute in (name, f"is_{name}"):
            if hasattr(owner, attribute):
                raise ValueError(
                    f"`name` must be the name of nothing in torch, got {name!r}, and "
                    f"`torch.{'' if owner is torch else owner.__name__ + '.'}{attribute}` exists"
                )


def _refuse_real_accelerator(name: str, allow_real: bool) -> None:
    if allow_real or any(running.name == name for running in _running):
        return
    if private.backend_name() == "privateuseone" and torch.accelerator.is_available():
        real = torch.accelerator.current_accelerator()
        raise RuntimeError(
            f"this machine has a real accelerator ({real}), and a simulated one would take its "
            f"place in `torch.accelerator` until the process ends. Use the real one, or say "
            f"`allow_real=True`"
        )
    if name == "cuda" and torch.cuda.is_available():
        raise RuntimeError(
            "this machine has a real CUDA device, and a simulated one would hide it. Use the real "
            "one, or say `allow_real=True`"
        )


class Simulation:
    """A running simulation; `simulate` makes it.

    Attributes:
        name: The type of its devices.
        devices: The devices, as `torch.device`.
    """

    def __init__(self, config: "Config") -> None:
        self.name = config.name
        self._config = config
        self._generators: list[torch.Generator] = []
        self._counts: defaultdict[int, Any] = defaultdict(_new_count)
        from devicekit.testing.simulation import registration

        # Torch's C++ has the name "cuda" for itself: there our devices are "sim", shown as "cuda".
        registration.register("sim" if self.name == "cuda" else self.name)
        # Before anything runs: what fails from here on must leave nothing running.
        self.devices = tuple(torch.device(self.name, i) for i in range(config.count))
        self._start()

    def _start(self) -> None:
        from devicekit.testing.simulation import processes, state

        self._before = processes.remember(), state.current.index
        # One at a time: the simulation around this one is taken off, and put on again at the end.
        if _running:
            _running[-1]._uninstall()
        try:
            self._install()
            processes.carry_on_use(self._before[0])
        except BaseException:
            self._uninstall()
            if _running:
                _running[-1]._install()
            raise
        state.current.index = 0
        _running.append(self)

    def _install(self) -> None:
        from devicekit.testing.simulation import (
            as_cuda,
            compiled,
            late,
            memory,
            processes,
            registration,
            rng,
            state,
        )
        from devicekit.testing.simulation.patching import Patches

        self._patches = patches = Patches()
        try:
            patches.set(state, "config", self._config)
            patches.set(rng, "_generators", self._generators)
            patches.set(memory, "counts", self._counts)
            registration.install(patches)
            processes.install(patches)
            compiled.install(patches)
            if self._config.async_copies:
                patches.set(state, "copy", late.copy)
                patches.set(state, "before_kernel", late.before_kernel)
                patches.set(state, "allocated", late.allocated)
                patches.set(state, "host_read", late.host_read)
                patches.set(state, "record_stream", late.record_stream)
            if self.name == "cuda":
                as_cuda.install(patches)
        except BaseException:
            self._uninstall()
            raise

    def _uninstall(self) -> None:
        from devicekit.testing.simulation import tensors

        self._patches.undo()
        tensors.forget_templates()

    def stop(self) -> None:
        """End the simulation, and those started after it; a second call does nothing.

        Raises:
            RuntimeError: With `async_copies`: a mistake that shows only when all copies landed.
        """
        if self not in _running:
            return
        from devicekit.testing.simulation import late, processes, state

        if _running[-1] is not self:
            _running[-1].stop()
            self.stop()
            return
        try:
            late.finish()
        finally:
            _running.pop()
            self._uninstall()
            before, state.current.index = self._before
            if _running:
                _running[-1]._install()
                processes.carry_on(before)

    def __enter__(self) -> "Simulation":
        if self not in _running:
            raise RuntimeError(
                f"this simulation of {self.name!r} was stopped and does not start again: call "
                f"`simulate` for another"
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self in _running else "stopped"
        return f"<Simulation of {len(self.devices)} {self.name} device(s), {state}>"


def _new_count() -> object:
    from devicekit.testing.simulation.memory import Count

    return Count()


_running: list[Simulation] = []
