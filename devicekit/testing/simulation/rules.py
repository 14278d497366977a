"""Which tensors on different devices may meet in an operator, and what CUDA says if they may not.

`operators` tells for each overload how CUDA checks; here are the checks. The hand-written ones name
the file of torch's source that they follow. All messages begin with CUDA's own first line; a second
line says which operator it was and where each of its arguments is.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from devicekit.testing.simulation import private, state
from devicekit.testing.simulation.operators import Operator, table

__all__ = ["check", "describe", "fail"]

# A failing test shows the user's line as the last one, not the simulation's.
__tracebackhide__ = True

Item = tuple[str, Any]
"""The name of an argument, and the tensor or list of tensors in it."""

# Iterator configs without `allow_cpu_scalars` although the table says TensorIterator: reductions,
# scans, and unary kernels with extra tensors (aten/src/ATen/native/ReduceOps.cpp, Loss.cpp).
_NO_CPU_SCALAR = frozenset(
    [
        "binary_cross_entropy",
        "binary_cross_entropy_backward",
        "log_sigmoid_forward",
        "norm",
        "sum",
        "mean",
        "prod",
        "any",
        "all",
        "cumsum",
        "cumprod",
        "max",
        "min",
        "aminmax",
        "var",
        "std",
        "renorm",
        "polygamma",
        "threshold",
    ]
)


@dataclass(frozen=True, slots=True)
class _Rule:
    check: "Callable[[_Call], None]"
    names: tuple[str, ...]
    written: frozenset[str]
    method: str


@dataclass(slots=True)
class _Call:
    """One call with tensors on more than one device."""

    op: Any
    items: list[Item]
    rule: _Rule

    @property
    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in self.items:
            if isinstance(value, torch.Tensor):
                yield name, value
            else:
                yield from ((name, x) for x in value if x is not None)

    def get(self, name: str) -> Any:
        return dict(self.items).get(name)


def check(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what CUDA raises for a call whose tensors are on more than one device, or return.

    Raises:
        RuntimeError: CUDA refuses the mix.
    """
    rule = _rule(op)
    pairs = [*zip(rule.names, args, strict=False), *kwargs.items()]
    rule.check(_Call(op, [(name, a) for name, a in pairs if _has_tensor(a)], rule))


def _has_tensor(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value)


@functools.cache
def _rule(op: Any) -> _Rule:
    name = op.name().split("::", 1)[1]
    base, _, overload = name.partition(".")
    entry = table().get(name) or table().get(base) or Operator("exact", False, False, False)
    # The names that torchgen gives to the wrappers of structured and of other operators.
    method = (
        (f"{base}_{overload}" if overload else base) if entry.structured else f"{overload}_{base}"
    )
    arguments = op._schema.arguments
    written = (a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    return _Rule(
        check=_BY_HAND.get(base) or _BY_HAND.get(base.rstrip("_")) or _generated(base, entry),
        names=tuple(a.name for a in arguments),
        written=frozenset(written),
        method=f"wrapper_CUDA_{method}",
    )


def _generated(base: str, entry: Operator) -> "Callable[[_Call], None]":
    if entry.check != "iterator":
        return _exact
    return _iterator_without_scalars if base.rstrip("_") in _NO_CPU_SCALAR else _iterator


# ------------------------------------------------------------------ messages


def device(x: torch.Tensor) -> torch.device:
    """Return the device of a tensor as the user sees it."""
    return state.shown(private.tensor_device(x))


def describe(op: Any, items: Sequence[Item]) -> str:
    """Return the line of help: the operator, and device and shape of each of its tensors."""

    def one(x: torch.Tensor) -> str:
        return f"{device(x)} {list(x.shape)}"

    def text(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return one(value)
        return "[" + ", ".join(one(x) for x in value if x is not None) + "]"

    return f"op: {op.name()}({', '.join(f'{name}: {text(value)}' for name, value in items)})"


def fail(call: _Call, message: str) -> None:
    """Raise a device error with the line of help under it."""
    raise RuntimeError(f"{message}\n  {describe(call.op, call.items)}")


def _fail_exact(call: _Call, name: str, found: torch.device, common: torch.device) -> None:
    # c10/core/impl: `common_device_check_failure` in aten/src/ATen/core/adaption.cpp
    fail(
        call,
        f"Expected all tensors to be on the same device, but got {name} is on {found}, different "
        f"from other tensors on {common} (when checking argument in method {call.rule.method})",
    )


def _fail_iterator(call: _Call, first: torch.device, second: torch.device) -> None:
    # aten/src/ATen/TensorIterator.cpp, compute_types
    fail(
        call,
        f"Expected all tensors to be on the same device, but found at least two devices, "
        f"{first} and {second}!",
    )


# ------------------------------------------------------------------ the two generated checks


def _exact(call: _Call) -> None:
    """All tensors on one device, 0-dim ones too; `out=` first, then in argument order."""
    written = call.rule.written
    outs = [(n, x) for n, x in call.tensors if n in written and n != "self"]
    rest = [(n, x) for n, x in call.tensors if n not in written or n == "self"]
    common = None
    for name, x in outs + rest:
        found = device(x)
        if common is None:
            common = found
        elif found != common:
            _fail_exact(call, name, found, common)


def _iterator(call: _Call, scalars: int = 1) -> None:
    """At most one 0-dim CPU input beside tensors of the device, never an output."""
    written = call.rule.written
    tensors = list(call.tensors)
    common = next((device(x) for _, x in tensors if device(x).type != "cpu"), torch.device("cpu"))
    passed = 0
    for name, x in sorted(tensors, key=lambda item: item[0] not in written):
        found = device(x)
        if scalars and found.type == "cpu" and x.dim() == 0 and name not in written:
            passed += 1
            if passed > scalars:
                fail(call, "Trying to pass too many CPU scalars to non-CPU kernel!")
        elif found != common:
            _fail_iterator(call, common, found)


def _iterator_without_scalars(call: _Call) -> None:
    _iterator(call, scalars=0)


# ------------------------------------------------------------------ checks written by hand in torch


def _anything(call: _Call) -> None:
    """The operator takes any mix: copies, and those that read a CPU scalar by themselves."""


def _index(call: _Call) -> None:
    """aten/src/ATen/native/TensorAdvancedIndexing.cpp: indices may be on the CPU."""
    home = device(call.get("self"))
    for index in call.get("indices") or ():
        if index is not None and device(index).type != "cpu" and device(index) != home:
            fail(
                call,
                f"indices should be either on cpu or on the same device as the indexed tensor "
                f"({home})",
            )
    values = call.get("values")
    if values is not None and device(values) != home and values.dim() != 0:
        _fail_iterator(call, home, device(values))
    out = call.get("out")
    if out is not None and device(out) != home:
        _fail_iterator(call, home, device(out))


def _where(call: _Call) -> None:
    """aten/src/ATen/native/TensorCompare.cpp, where_self_out: 0-dim CPU tensors are moved."""
    home = next(device(x) for _, x in call.tensors if device(x).type != "cpu")
    for name, x in call.tensors:
        if device(x) != home and (x.dim() != 0 or name == "out"):
            _fail_iterator(call, home, device(x))


def _masked_fill(call: _Call) -> None:
    """aten/src/ATen/native/cuda/Indexing.cu, masked_fill__cuda."""
    home, mask = device(call.get("self")), device(call.get("mask"))
    if home != mask:
        fail(
            call,
            f"expected self and mask to be on the same device, but got mask on {mask} and self on "
            f"{home}",
        )
    value = call.get("value")
    if isinstance(value, torch.Tensor) and home.type == "cpu" != device(value).type:
        fail(call, "masked_fill_: Expected inputs to be on same device")


def _index_fill(call: _Call) -> None:
    """The value is read as a number (TensorAdvancedIndexing.cpp), the index must be at home."""
    home, index = device(call.get("self")), device(call.get("index"))
    if home != index:
        _fail_exact(call, "index", index, home)


def _set(call: _Call) -> None:
    """aten/src/ATen/native/TensorShape.h, checkSetStorage."""
    (_, one), (_, other) = list(call.tensors)[:2]
    fail(
        call,
        f'Attempted to set the storage of a tensor on device "{device(one)}" to a storage on '
        f'different device "{device(other)}".  This is no longer allowed; the devices must match.',
    )


def _ctc(call: _Call) -> None:
    """aten/src/ATen/native/cuda/LossCTC.cu: the lengths may be on the CPU."""
    lengths = ("input_lengths", "target_lengths")
    _exact(_Call(call.op, [item for item in call.items if item[0] not in lengths], call.rule))


def _rows(call: _Call) -> Iterator[_Call]:
    """Yield the calls, one for each position in the lists, that a foreach operator stands for."""
    lists = [(n, v) for n, v in call.items if not isinstance(v, torch.Tensor)]
    single = [(n, v) for n, v in call.items if isinstance(v, torch.Tensor)]
    for i in range(len(lists[0][1]) if lists else 0):
        row = [(n, v[i]) for n, v in lists if i < len(v) and v[i] is not None]
        if len({device(x) for _, x in row + single}) > 1:
            yield _Call(call.op, row + single, call.rule)


def _foreach(call: _Call) -> None:
    """aten/src/ATen/native/ForeachUtils.h: off the fast path, one call for each row."""
    for row in _rows(call):
        _iterator(row)


def _fused_optimizer(call: _Call) -> None:
    """aten/src/ATen/native/cuda/FusedAdamKernel.cu: lr and scales may be elsewhere."""
    lists = [(n, v) for n, v in call.items if not isinstance(v, torch.Tensor)]
    for row in _rows(_Call(call.op, lists, call.rule)):
        _exact(row)


_BY_HAND: dict[str, Callable[[_Call], None]] = {
    **dict.fromkeys(
        ["index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"], _index
    ),
    **dict.fromkeys(
        [
            "copy",
            "_copy_from",
            "_copy_from_and_resize",
            "_to_copy",
            "fill",
            "_foreach_copy",
            "bernoulli",
            "is_set_to",
            "lift_fresh",
            "_pack_padded_sequence",
            "_nested_view_from_jagged",
        ],
        _anything,
    ),
    **dict.fromkeys(
        [
            f"_foreach_{name}"
            for name in [
                "add",
                "sub",
                "mul",
                "div",
                "addcmul",
                "addcdiv",
                "lerp",
                "maximum",
                "minimum",
                "clamp_max",
                "clamp_min",
                "pow",
            ]
        ],
        _foreach,
    ),
    **dict.fromkeys(
        [f"_fused_{name}" for name in ("adam", "adamw", "sgd", "adagrad")], _fused_optimizer
    ),
    **dict.fromkeys(["_ctc_loss", "_ctc_loss_backward"], _ctc),
    "index_fill": _index_fill,
    "masked_fill": _masked_fill,
    "set": _set,
    "where": _where,
}
