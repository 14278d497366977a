"""The kernel behind every operator: check the devices, run the CPU's kernel, wrap what it returns.

It is registered as the fallback of the PrivateUse1 key, and also directly for each operator that has
a kernel of its own on CUDA: then nothing is decomposed before the check that CUDA would not
decompose either, and the error names the same operator.
"""

from collections.abc import Callable
from typing import Any

import torch

from devicekit.testing.simulation import private, rng, rules, state, tensors
from devicekit.testing.simulation.tensors import CPU, CPU_KEYS

__all__ = ["REPLACED", "Plan", "kernel", "plan"]

REPLACED: dict[Any, Callable[..., Any]] = {}
"""What runs on the CPU tensors instead of an operator that has no CPU kernel (see `fused`)."""

_device_of = private.tensor_device


class Plan:
    """What the kernel needs to know of an overload, worked out once from its schema."""

    __slots__ = (
        "names",
        "numbers",
        "random",
        "generator",
        "results",
        "run",
        "single",
        "view",
        "writes",
    )

    def __init__(self, op: Any) -> None:
        arguments, returns = op._schema.arguments, op._schema.returns
        self.names = [a.name for a in arguments]
        written = {
            i: a.alias_info.before_set
            for i, a in enumerate(arguments)
            if a.alias_info is not None and a.alias_info.is_write
        }
        self.writes = tuple(written)
        aliases = [r.alias_info for r in returns]
        self.view = not written and any(a is not None and not a.is_write for a in aliases)
        # For each result: the position of the argument that it is, or None for a new tensor.
        self.results = [
            next((i for i, names in written.items() if a and a.is_write and names & a.before_set), None)
            for a in aliases
        ]
        self.single = len(returns) == 1
        self.random = torch.Tag.nondeterministic_seeded in op.tags
        self.generator = self.names.index("generator") if "generator" in self.names else None
        # Where a Python number may stand for a tensor.
        self.numbers = tuple(i for i, a in enumerate(arguments) if _is_tensor_type(a.type))
        self.run = REPLACED.get(op)


def _is_tensor_type(kind: Any) -> bool:
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return bool(kind.kind() == "TensorType")


_plans: dict[Any, Plan] = {}


def plan(op: Any) -> Plan:
    """Return the plan of an overload."""
    found = _plans.get(op)
    if found is None:
        found = _plans[op] = Plan(op)
    return found


def kernel(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one operator with at least one argument, or the `device=`, on the simulated device."""
    p = plan(op)
    if p.view:
        # Only metadata: the CPU's kernel does it on the device tensor itself, and the view shares
        # its storage.
        return op.redispatch(CPU_KEYS, *args, **kwargs)
    if state.config is None:
        state.active()  # raises
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    devices: list[torch.device] = []
    cpu_args = [_lower(a, pairs, devices) for a in args]
    cpu_kwargs = {k: _lower(v, pairs, devices) for k, v in kwargs.items()} if kwargs else kwargs
    if len(devices) > 1:
        first = devices[0]
        if any(d != first for d in devices):
            rules.check(op, args, kwargs)
    index = _device_of(pairs[0][0]).index if pairs else state.current.index
    if kwargs:
        index = _lower_options(cpu_kwargs, index)
    if state.before_kernel is not None:
        _announce(p, args, kwargs)
    out = _run(op, p, index, pairs, cpu_args, cpu_kwargs)
    if p.writes:
        _reattach_resized(pairs)
    if p.single:
        return _raise_up(out, p.results[0], args, kwargs, p, pairs, index)
    if not p.results:
        return None
    return tuple(
        _raise_up(o, position, args, kwargs, p, pairs, index)
        for o, position in zip(out, p.results, strict=True)
    )


# ------------------------------------------------------------------ down to the CPU


def _lower(a: Any, pairs: list[tuple[torch.Tensor, torch.Tensor]], devices: list[Any]) -> Any:
    """Return an argument with CPU tensors over the same bytes; note each pair, and each device."""
    if isinstance(a, torch.Tensor):
        found = _device_of(a)
        devices.append(found)
        if found.type != state.backend:
            return a
        made = tensors.to_cpu(a)
        pairs.append((a, made))
        return made
    if type(a) in (list, tuple) and any(isinstance(x, torch.Tensor) for x in a):
        return [_lower(x, pairs, devices) for x in a]
    return a


def _lower_options(kwargs: dict[str, Any], index: int) -> int:
    """Turn `device=` into the CPU, and return the index it meant."""
    if kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    asked = kwargs.get("device")
    if asked is None:
        return index
    kwargs["device"] = CPU
    return state.resolve(asked) if asked.type == state.backend else index


def _announce(p: Plan, args: Any, kwargs: Any) -> None:
    reads: list[torch.Tensor] = []
    writes: list[torch.Tensor] = []
    named = [(i, a) for i, a in enumerate(args)]
    named += [(p.names.index(k), a) for k, a in kwargs.items() if k in p.names]
    for position, a in named:
        into = writes if position in p.writes else reads
        if isinstance(a, torch.Tensor):
            into.append(a)
        elif isinstance(a, list | tuple):
            into += [x for x in a if isinstance(x, torch.Tensor)]
    if state.before_kernel is not None:
        state.before_kernel(reads, writes)


# ------------------------------------------------------------------ run


def _run(op: Any, p: Plan, index: int, pairs: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if p.random:
        return _run_random(op, p, index, args, kwargs)
    if p.run is not None:
        return p.run(*args, **kwargs)
    # A number in a tensor's place arrives here as a Python number, which `redispatch` refuses, and a
    # sparse tensor must not go to the dense kernel: both take the whole way through the dispatcher.
    # The packet picks the overload for numbers (`.Scalar`).
    for i in p.numbers:
        if i < len(args) and isinstance(args[i], int | float | complex):
            return op.overloadpacket(*args, **kwargs)
    for _, cpu in pairs:
        if cpu.layout is not torch.strided:
            return op.overloadpacket(*args, **kwargs)
    return op.redispatch(CPU_KEYS, *args, **kwargs)


def _run_random(op: Any, p: Plan, index: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Run a kernel that draws random numbers, from the generator of the device."""
    run = p.run or op
    position = p.generator
    if position is None:
        # No `generator` argument (dropout): lend the device's state to the CPU's generator.
        cpu, mine = torch.default_generator, rng.default(index)
        before = cpu.get_state()
        cpu.set_state(mine.get_state())
        try:
            return run(*args, **kwargs)
        finally:
            mine.set_state(cpu.get_state())
            cpu.set_state(before)
    if position < len(args):
        args[position] = rng.for_kernel(args[position], index)
    else:
        kwargs = {**kwargs, "generator": rng.for_kernel(kwargs.get("generator"), index)}
    return run(*args, **kwargs)


# ------------------------------------------------------------------ and back up


def _reattach_resized(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give device tensors the new storage where the kernel resized its output."""
    for device_tensor, cpu in pairs:
        if (
            device_tensor.shape != cpu.shape
            or device_tensor.untyped_storage().data_ptr() != cpu.untyped_storage().data_ptr()
        ):
            tensors.reattach(device_tensor, cpu)


def _raise_up(
    out: Any, position: int | None, args: Any, kwargs: Any, p: Plan, pairs: Any, index: int
) -> Any:
    """Return the device tensor for one result of the CPU's kernel."""
    if position is not None:
        return args[position] if position < len(args) else kwargs[p.names[position]]
    if isinstance(out, torch.Tensor):
        for device_tensor, cpu in pairs:
            if out is cpu:
                return device_tensor
        return tensors.to_device(out, index)
    if isinstance(out, list | tuple):
        return [_raise_up(o, None, args, kwargs, p, pairs, index) for o in out]
    return out
