"""Storages, `.data` and saving: where torch has no hook for a backend."""

import functools
from typing import Any

import torch

from devicekit.testing.simulation import private, state, tensors
from devicekit.testing.simulation.patching import Patches

__all__ = ["install", "location", "restore"]

_Storage: Any = torch.UntypedStorage
_plain_clone, _plain_cpu, _plain_to, _plain_share = (
    _Storage.clone,
    _Storage.cpu,
    _Storage.to,
    _Storage.share_memory_,
)
_plain_new = private.StorageBase.__new__
_plain_data = private.tensor_data
_plain_new_like: Any = torch.Tensor.new
_plain_new_tensor = torch.Tensor.new_tensor


def install(patches: Patches) -> None:
    """Teach `torch.UntypedStorage`, `Tensor.data` and `Module.to` about the device."""
    patches.set(torch.Tensor, "new", _new_like)
    patches.set(torch.Tensor, "new_tensor", _new_tensor)
    patches.set(_Storage, "clone", _clone)
    patches.set(_Storage, "cpu", _cpu)
    patches.set(_Storage, "to", _to)
    patches.set(_Storage, "share_memory_", _share_memory)
    patches.set(_Storage, state.backend, _to_backend)
    # `Module.to` assigns `param.data` where the two types of tensor are compatible, and torch does
    # not know that ours are. With its other ways parameters would lose their identity, and an
    # optimizer made before the move would train nothing.
    patches.set(torch, "_has_compatible_shallow_copy_type", _has_compatible_shallow_copy_type)
    patches.set(torch.Tensor, "to", _tensor_to)
    patches.set(torch.Tensor, "data", property(_plain_data.__get__, _set_data))


# ------------------------------------------------------------------ storages


def new(cls: type[torch.UntypedStorage], *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """Make a storage; replaces `UntypedStorage.__new__`, which has no allocator for the device.

    It stays after the simulation, as the device does: without an allocator, C++ ends the process.
    """
    if device is not None:
        kinds = {state.backend, state.config.name if state.config else state.backend}
        device = torch.device(device)
        if device.type in kinds:
            index = state.resolve(device)
            return tensors.device_storage(_plain_new(_Storage, *args, **kwargs), index)
        kwargs["device"] = device
    return _plain_new(cls, *args, **kwargs)


def _new_like(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Make a tensor on the device of this one: `Tensor.new`, which collates in workers."""
    if not tensors.is_on_device(self):
        return _plain_new_like(self, *args, **kwargs)  # type: ignore[no-any-return]
    if len(args) == 1 and type(args[0]) in (list, tuple):
        return self.new_tensor(args[0])
    before = state.current.index
    state.current.index = tensors.device_index(self)  # C++ asks the guard, which knows only one
    try:
        return _plain_new_like(self, *args, **kwargs)  # type: ignore[no-any-return]
    finally:
        state.current.index = before


def _new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if kwargs.get("device") is None and tensors.is_on_device(self):
        kwargs["device"] = private.tensor_device(self)
    return _plain_new_tensor(self, *args, **kwargs)


def _on_device(storage: Any) -> bool:
    return bool(private.storage_device(storage).type == state.backend)


def _bytes_of(storage: Any) -> Any:
    """Return the CPU storage to read, after the copies into it that come before the reader."""
    if not _on_device(storage):
        return storage
    if state.host_read is not None:
        state.host_read(private.storage_device(storage).index)
    return tensors.cpu_storage(storage)


def _clone(self: Any) -> Any:
    if not _on_device(self):
        return _plain_clone(self)
    copied = _bytes_of(self).clone()
    return tensors.device_storage(copied, private.storage_device(self).index)


def _cpu(self: Any) -> Any:
    return _bytes_of(self).clone() if _on_device(self) else _plain_cpu(self)


def _to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    device = torch.device(device)
    if device.type in (state.backend, state.active().name):
        return tensors.device_storage(_bytes_of(self).clone(), state.resolve(device))
    if _on_device(self):
        return _bytes_of(self).clone()
    return _plain_to(self, device=device, non_blocking=non_blocking)


def _to_backend(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
    return tensors.device_storage(_bytes_of(self).clone(), state.resolve(device))


def _share_memory(self: Any) -> Any:
    return self if _on_device(self) else _plain_share(self)  # as on CUDA: nothing to do


# ------------------------------------------------------------------ .to and .data


_plain_tensor_to = torch.Tensor.to


@functools.wraps(_plain_tensor_to)
def _tensor_to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Let a device without index mean the current one: C++ asks the guard, which knows only 0."""
    if state.current.index:
        if args and isinstance(args[0], str | torch.device):
            args = (_indexed(args[0]), *args[1:])
        elif kwargs.get("device") is not None:
            kwargs["device"] = _indexed(kwargs["device"])
    return _plain_tensor_to(self, *args, **kwargs)


def _indexed(spec: Any) -> Any:
    device = torch.device(spec)
    if device.type != state.backend or device.index is not None:
        return spec
    return state.device(state.current.index)


# With `wraps`, torch.compile takes it for the builtin that it is put in place of.
@functools.wraps(private.has_compatible_shallow_copy_type)
def _has_compatible_shallow_copy_type(one: torch.Tensor, other: torch.Tensor) -> bool:
    if private.has_compatible_shallow_copy_type(one, other):
        return True
    types = {private.tensor_device(one).type, private.tensor_device(other).type}
    dense = one.layout is torch.strided and other.layout is torch.strided
    return dense and types == {"cpu", state.backend}


def _set_data(self: torch.Tensor, value: torch.Tensor, owners: int = 1) -> None:
    """Assign `.data`; to another device by giving this Python object a new C++ tensor.

    Class, attributes, hooks and weak references stay, and the gradient moves along. (On CUDA the
    gradient stays behind until it is moved too, as `Module.to` does next; torch lets nobody have a
    gradient on another device here.)
    """
    if not isinstance(value, torch.Tensor) or not _crosses(self, value):
        _plain_data.__set__(self, value)
        return
    _check_alone(self, owners)
    made = value.detach()
    made.requires_grad_(self.requires_grad)
    if self.grad is not None:
        gradient = self.grad
        if _crosses(gradient, value):
            # The tensor that it belongs to is its second owner.
            _set_data(gradient, gradient.detach().to(private.tensor_device(value)), owners=2)
        made.grad = gradient
    for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        registered = getattr(self, hooks, None)
        if registered:
            setattr(made, hooks, registered)
    private.swap_tensor_impl(self, made)


def _crosses(one: torch.Tensor, other: torch.Tensor) -> bool:
    mine, yours = private.tensor_device(one).type, private.tensor_device(other).type
    return mine != yours and state.backend in (mine, yours)


def _check_alone(x: torch.Tensor, owners: int) -> None:
    """Check that nothing in C++ would go on using the old tensor behind the Python object.

    Raises:
        RuntimeError: A view, a graph or something else does.
    """
    count = x._use_count()  # type: ignore[attr-defined]
    if count <= owners:
        return
    if count == owners + 1 and x.is_leaf and x.requires_grad:
        node = torch.autograd.graph.get_gradient_edge(x).node
        if x._use_count() == count:  # type: ignore[attr-defined]
            node.register_prehook(_refuse_stale_graph)
            return
    raise RuntimeError(
        "the simulated accelerator cannot change the device of a tensor in place while a view of "
        "it or a graph made from it is alive (CUDA can). Drop those first"
    )


def _refuse_stale_graph(*_: Any) -> None:
    raise RuntimeError(
        "this graph was made before one of its parameters changed its device; run forward again"
    )


# ------------------------------------------------------------------ torch.save, torch.load


def location(storage: Any) -> str | None:
    """Return the tag that `torch.save` writes for a storage of the device."""
    storage = getattr(storage, "_untyped_storage", storage)
    if not isinstance(storage, _Storage) or not _on_device(storage):
        return None
    return str(state.shown(private.storage_device(storage)))


def restore(storage: Any, tag: str) -> Any:
    """Return the storage that `torch.load` makes for a tag, None where the tag is not ours."""
    names = {state.backend} | ({state.config.name} if state.config else set())
    kind, _, index = tag.partition(":")
    if kind not in names:
        return None
    if kind == "cuda" and index and int(index) >= state.active().count:
        return None  # torch's own loader for CUDA says what is wrong
    storage = getattr(storage, "_untyped_storage", storage)
    where = state.resolve(int(index) if index else None)
    return tensors.device_storage(storage.clone(), where)
