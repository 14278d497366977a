"""The kernel behind every operator: check the devices, run the CPU's kernel, wrap what it returns.

It is registered as the fallback of the PrivateUse1 key, and also directly for each operator that
has a kernel of its own on CUDA: then nothing is decomposed before the check that CUDA would not
decompose either, and the error names the same operator.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from devicekit.testing.simulation import private, rng, rules, state, tensors
from devicekit.testing.simulation.tensors import CPU, CPU_KEYS

__all__ = ["REPLACED", "kernel_of", "run_random", "run_unknown"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

REPLACED: dict[Any, Callable[..., Any]] = {}
"""What runs on the CPU tensors instead of an operator that has no CPU kernel (see `fused`)."""

Pairs = list[tuple[Tensor, Tensor]]
"""Each device tensor among the arguments, with the CPU tensor over the same bytes."""

_HOST = -1
"""What `Tensor.get_device` says for a tensor that is not on an accelerator."""


def run_unknown(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that no kernel is registered for: the fallback of the key."""
    return kernel_of(op)(*args, **kwargs)


@functools.cache
def kernel_of(op: Any) -> Callable[..., Any]:
    """Return the kernel of an overload; what its schema tells is worked out here, once."""
    redispatch = private.redispatch(op)
    if is_view(op):
        # Only metadata: the CPU's kernel does it on the device tensor itself, and the view shares
        # its storage.
        return functools.partial(redispatch, CPU_KEYS)

    arguments = op._schema.arguments
    names = [a.name for a in arguments]
    written = [i for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
    resizes = any(arguments[i].is_out for i in written) or "resize" in op.name()
    results = [_written_argument(r, arguments, written) for r in op._schema.returns]
    single = results[0] if len(results) == 1 else None
    many = len(results) > 1
    tensor_positions = frozenset(i for i, a in enumerate(arguments) if _takes_tensor(a))
    run = _runner(op, names)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if state.config is None:
            state.active()  # raises
        pairs: Pairs = []
        devices: list[int] = []
        number = False
        low = list(args)
        for i, a in enumerate(args):
            if isinstance(a, Tensor):
                low[i] = _lower(a, pairs, devices)
            elif type(a) in (list, tuple):
                low[i] = _lower_list(a, pairs, devices)
            elif i in tensor_positions and a is not None:
                number = True
        index = devices[0] if devices else _HOST
        if kwargs:
            low_kwargs = {k: _lower_any(v, pairs, devices) for k, v in kwargs.items()}
            index = _lower_options(low_kwargs, index)
        else:
            low_kwargs = kwargs
        if len(devices) > 1 and devices.count(devices[0]) != len(devices):
            rules.check(op, args, kwargs)
            index = next(d for d in devices if d != _HOST)
        elif index == _HOST:
            index = pairs[0][0].get_device() if pairs else state.current.index
        if state.before_kernel is not None:
            _announce(state.before_kernel, names, written, args, kwargs)

        sparse = any(cpu.layout is not torch.strided for _, cpu in pairs)
        if run is not None:
            out = run(index, low, low_kwargs)
        elif number or sparse:
            # A number in a tensor's place arrives here as a Python number, which `redispatch`
            # refuses, and a sparse tensor must not go to the dense kernel: both take the whole way
            # through the dispatcher. The packet picks the overload for numbers (`.Scalar`).
            out = op.overloadpacket(*low, **low_kwargs)
        else:
            out = redispatch(CPU_KEYS, *low, **low_kwargs)

        if resizes or (sparse and written):
            _reattach(pairs)
        if single is not None:
            return args[single] if single < len(args) else kwargs[names[single]]
        if not many:
            return _lift(out, pairs, index) if results else None
        return tuple(
            _lift(o, pairs, index)
            if i is None
            else (args[i] if i < len(args) else kwargs[names[i]])
            for o, i in zip(out, results, strict=True)
        )

    return kernel


# ------------------------------------------------------------------ what a schema tells


def is_view(op: Any) -> bool:
    """Whether an overload returns a view of an argument and writes none."""
    writes = any(a.alias_info and a.alias_info.is_write for a in op._schema.arguments)
    return not writes and any(r.alias_info is not None for r in op._schema.returns)


def _takes_tensor(argument: Any) -> bool:
    kind = argument.type
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return bool(kind.kind() == "TensorType")


def _written_argument(result: Any, arguments: Any, written: list[int]) -> int | None:
    """Return the position of the argument that a result is, None if it is a new tensor."""
    alias = result.alias_info
    if alias is None or not alias.is_write:
        return None
    return next((i for i in written if arguments[i].alias_info.before_set & alias.before_set), None)


def _runner(op: Any, names: list[str]) -> Callable[..., Any] | None:
    """Return what runs instead of the CPU kernel of the overload, None where that is all."""
    replaced = REPLACED.get(op)
    if torch.Tag.nondeterministic_seeded in op.tags:
        position = names.index("generator") if "generator" in names else None
        return functools.partial(_run_with_generator, replaced or op, position)
    if replaced is None:
        return None
    return lambda index, args, kwargs: replaced(*args, **kwargs)


# ------------------------------------------------------------------ down to the CPU


def _lower(x: Tensor, pairs: Pairs, devices: list[int]) -> Tensor:
    """Return the CPU tensor over the bytes of an argument; note the pair, and the device."""
    index = x.get_device()
    devices.append(index)
    if index == _HOST:
        return x
    made = tensors.to_cpu(x)
    pairs.append((x, made))
    return made


def _lower_list(value: Any, pairs: Pairs, devices: list[int]) -> Any:
    if not any(isinstance(x, Tensor) for x in value):
        return value
    return [_lower(x, pairs, devices) if isinstance(x, Tensor) else x for x in value]


def _lower_any(value: Any, pairs: Pairs, devices: list[int]) -> Any:
    if isinstance(value, Tensor):
        return _lower(value, pairs, devices)
    return _lower_list(value, pairs, devices) if type(value) in (list, tuple) else value


def _lower_options(kwargs: dict[str, Any], index: int) -> int:
    """Turn `device=` into the CPU, and return the index it meant."""
    if kwargs.get("pin_memory"):
        raise RuntimeError("Only dense CPU tensors can be pinned")
    asked = kwargs.get("device")
    if asked is None:
        return index
    kwargs["device"] = CPU
    return state.resolve(asked) if asked.type == state.backend else index


def _announce(
    hook: Callable[..., None], names: list[str], written: list[int], args: Any, kwargs: Any
) -> None:
    """Tell the hook which tensors the kernel reads and which it writes."""
    reads: list[Tensor] = []
    writes: list[Tensor] = []
    named = [*enumerate(args), *((names.index(k), a) for k, a in kwargs.items() if k in names)]
    for position, a in named:
        into = writes if position in written else reads
        if isinstance(a, Tensor):
            into.append(a)
        elif isinstance(a, list | tuple):
            into += [x for x in a if isinstance(x, Tensor)]
    hook(reads, writes)


# ------------------------------------------------------------------ random numbers


def _run_with_generator(
    run: Callable[..., Any], position: int | None, index: int, args: Any, kwargs: Any
) -> Any:
    """Run a kernel that draws random numbers, from the generator of the device."""
    if position is None:
        return run_random(run, index, *args, **kwargs)
    if position < len(args):
        args[position] = rng.for_kernel(args[position], index)
    else:
        kwargs = {**kwargs, "generator": rng.for_kernel(kwargs.get("generator"), index)}
    return run(*args, **kwargs)


def run_random(run: Callable[..., Any], index: int, *args: Any, **kwargs: Any) -> Any:
    """Run what draws from the CPU's default generator, lent the state of the device's."""
    cpu, mine = torch.default_generator, rng.default(index)
    before = cpu.get_state()
    cpu.set_state(mine.get_state())
    try:
        return run(*args, **kwargs)
    finally:
        mine.set_state(cpu.get_state())
        cpu.set_state(before)


# ------------------------------------------------------------------ and back up


def _reattach(pairs: Pairs) -> None:
    """Give device tensors the new storage where the kernel resized its output."""
    for x, cpu in pairs:
        if cpu.layout is not torch.strided:
            tensors.sparse_reattach(x, cpu)
            continue
        before = tensors.cpu_storage(x.untyped_storage())
        if x.shape != cpu.shape or before.data_ptr() != cpu.untyped_storage().data_ptr():
            tensors.reattach(x, cpu)


def _lift(out: Any, pairs: Pairs, index: int) -> Any:
    """Return the device tensor for a result of the CPU's kernel."""
    if isinstance(out, Tensor):
        for x, cpu in pairs:
            if out is cpu:
                return x
        return tensors.to_device(out, index)
    if isinstance(out, list | tuple):
        return [_lift(o, pairs, index) for o in out]
    return out
