"""Moving modules, in place and with their ties, and the state of optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from devicekit.errors import MoveError
from devicekit.tree import map_tensors

if TYPE_CHECKING:
    from devicekit.move.transfer import Transfer

__all__ = ["move_module", "move_optimizer"]


def move_module(module: nn.Module, transfer: Transfer) -> nn.Module:
    """Move a module in place by its own `to`, and mend what that breaks.

    `Module.to` makes a tensor per name when it moves to `meta`, and for buffers always: names that
    were one tensor are made one again.
    """
    device = transfer.device
    before = list(_tensors(module))
    there = all(t.device == device and not _is_to_cast(t, transfer.dtype) for *_, t in before)
    if there and not _has_other_state(module):
        return module
    _refuse_meta(module, device)
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner, name, tensor in before:
        owners.setdefault(id(tensor), []).append((owner, name))
    try:
        _cast(module, transfer)
        _call_to(module, transfer)
    except Exception as error:  # raised again at once: only a note is added
        error.add_note(_where_is_what(module))
        raise
    finally:
        for (first, first_name), *others in owners.values():
            for owner, name in others:
                setattr(owner, name, getattr(first, first_name))
    for owner, name, tensor in before:
        transfer.settle(tensor, getattr(owner, name))
    return module


def _tensors(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Each parameter and buffer, under each of its names: owner, name there, tensor."""
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            yield owner, name, parameter
        for name, buffer in owner.named_buffers(recurse=False, remove_duplicate=False):
            yield owner, name, buffer


def _has_other_state(module: nn.Module) -> bool:
    """Whether a class outside torch has its own way of moving, such as the metrics of torchmetrics.

    They hold tensors that are neither parameters nor buffers.
    """
    classes = {cls for part in module.modules() for cls in type(part).__mro__}
    return any("_apply" in vars(c) and not c.__module__.startswith("torch.") for c in classes)


def _is_to_cast(tensor: Tensor, dtype: torch.dtype | None) -> bool:
    return dtype is not None and tensor.is_floating_point() and tensor.dtype != dtype


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _refuse_meta(module: nn.Module, device: torch.device) -> None:
    names = [name for name, tensor in _named(module) if tensor.is_meta]
    if device.type == "meta" or not names:
        return
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    plural = "s" if len(names) > 1 else ""
    raise MoveError(
        f"Cannot copy out of meta tensor; no data! {type(module).__name__} has {len(names)} "
        f"parameter{plural} or buffer{plural} on meta: "
        f"{', '.join(names[:5])}{more}. Make room for them with "
        f'`module.to_empty(device="{device}")`, then load or initialise their values'
    )


def _call_to(module: nn.Module, transfer: Transfer) -> None:
    how = {transfer.is_asynchronous(tensor) for _, tensor in _named(module)}
    options: dict[str, Any] = {"non_blocking": True} if how == {True} else {}
    try:
        module.to(transfer.device, **options)
    except TypeError as error:
        if "float64" not in str(error):
            raise
        _narrow(module, transfer)
        module.to(transfer.device, **options)


def _cast(module: nn.Module, transfer: Transfer) -> None:
    """Cast the floating-point tensors. `Module.to` would cast complex ones too."""
    if transfer.dtype is None:
        return
    for owner, name, tensor in list(_tensors(module)):
        if _is_to_cast(tensor, transfer.dtype):
            _set(owner, name, tensor, transfer.dtype)


def _narrow(module: nn.Module, transfer: Transfer) -> None:
    for owner, name, tensor in list(_tensors(module)):
        if tensor.dtype in (torch.float64, torch.complex128):
            _set(owner, name, tensor, transfer.narrow(tensor))


def _set(owner: nn.Module, name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if not isinstance(tensor, nn.Parameter):
        setattr(owner, name, tensor.to(dtype))
        return
    grad, tensor.grad = tensor.grad, None
    tensor.data = tensor.data.to(dtype)
    tensor.grad = None if grad is None else grad.to(dtype)


def _where_is_what(module: nn.Module) -> str:
    """For an error half-way: which parameters and buffers are where now."""
    places: dict[str, list[str]] = {}
    for name, tensor in _named(module):
        places.setdefault(str(tensor.device), []).append(name)
    listed = [
        f"{len(names)} on {place}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        for place, names in places.items()
    ]
    return f"the parameters and buffers of {type(module).__name__} are now " + "; ".join(listed)


def move_optimizer(optimizer: torch.optim.Optimizer, transfer: Transfer) -> torch.optim.Optimizer:
    """Move the state of an optimizer in place, each value as torch's `load_state_dict` places it.

    `step` stays on the CPU, where the optimizers read it, unless its group is `capturable` or
    `fused`. All new values are made before the first is set, so an error leaves it as it was.
    https://github.com/pytorch/pytorch/blob/v2.6.0/torch/optim/optimizer.py#L726
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    new: list[tuple[Any, Any, Any]] = []
    for i, (parameter, state) in enumerate(optimizer.state.items()):
        group = groups.get(id(parameter), {})
        on_device = transfer.device.type == "cpu" or group.get("capturable") or group.get("fused")
        for key, value in state.items():
            if key != "step":
                name = f"state[{i}][{key!r}]"
                moved = map_tensors(value, transfer.tensor, name=name, note=transfer.note)
                new.append((state, key, moved))
            elif on_device and isinstance(value, Tensor):
                new.append((state, key, value.to(transfer.device, torch.float32)))
    for group in optimizer.param_groups:
        for key, value in group.items():
            if key != "params" and isinstance(value, Tensor) and not value.is_cpu:
                new.append((group, key, transfer.tensor(value)))  # such as a capturable `lr`
    for holder, key, value in new:
        holder[key] = value
    return optimizer
