"""The one module that names private API of torch, or knows what changed between its versions.

Each function here says what it stands for and has a test that fails when torch changes it.
"""

import os
import warnings
from collections.abc import Callable
from functools import _lru_cache_wrapper, cache
from types import FunctionType, ModuleType
from typing import Any, cast

import torch

__all__ = [
    "cuda_arch_list",
    "current_index",
    "environment_getter",
    "is_disguised_as_cuda",
    "is_replaced",
    "ordinals_of_uuids",
    "private_backend",
    "shared_memory",
    "torch_knows",
    "visible_devices",
]


def private_backend() -> str | None:
    """The name of the registered PrivateUse1 backend, or None.

    torch has a public way to set the name (`torch.utils.rename_privateuse1_backend`), none to
    read it.
    """
    name: str = torch._C._get_privateuse1_backend_name()
    return None if name == "privateuseone" else name


def cuda_arch_list() -> tuple[str, ...]:
    """The GPU architectures that this build of torch has kernels for, such as "sm_90".

    `torch.cuda.get_arch_list` is the same in new versions, but up to torch 2.9 (at least) it calls
    `torch.cuda.is_available` first, which spoils a later fork.
    """
    if not hasattr(torch._C, "_cuda_getArchFlags"):
        return ()
    flags: str | None = torch._C._cuda_getArchFlags()
    return tuple(flags.split()) if flags else ()


def visible_devices() -> list[int] | list[str]:
    """`CUDA_VISIBLE_DEVICES` as torch reads it: ordinals, or (prefixes of) UUIDs."""
    return cast("list[int] | list[str]", torch.cuda._parse_visible_devices())  # type: ignore[attr-defined]


def ordinals_of_uuids(masks: list[str], uuids: list[str]) -> list[int]:
    """The positions in `uuids` that the UUIDs or unambiguous prefixes in `masks` select."""
    return cast("list[int]", torch.cuda._transform_uuid_to_ordinals(masks, uuids))  # type: ignore[attr-defined]


def is_replaced(function: object, module: ModuleType) -> bool:
    """Whether somebody put another function in the place of torch's own: a mock, a simulation."""
    if isinstance(function, _lru_cache_wrapper):
        function = function.__wrapped__  # torch.backends.mps.is_available
    if not isinstance(function, FunctionType):
        return True
    return function.__code__.co_filename != module.__file__


def is_disguised_as_cuda(backend: str) -> bool:
    """Whether the PrivateUse1 backend answers for `torch.cuda` (`devicekit.testing`)."""
    if not is_replaced(torch.cuda.is_available, torch.cuda):
        return False
    return torch.cuda.is_available is getattr(getattr(torch, backend, None), "is_available", None)


def current_index(type: str) -> int:
    """The index of the current device; 0 where asking for it would initialise the backend."""
    module = getattr(torch, type)
    initialized = getattr(module, "is_initialized", None)
    if initialized is not None and not initialized():
        return 0
    return int(module.current_device())


def torch_knows(name: str) -> bool:
    """Whether torch accepts `name` as a type of device, usable or not."""
    if name == private_backend():
        return True
    return _torch_parses(name)


@cache
def _torch_parses(name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it deprecates some names with a warning
        try:
            torch.device(name)
        except RuntimeError:
            return False
    return True


# `os.environ.get` takes a microsecond, as it encodes and decodes; the dictionary below it 30 ns.
_environ = os.environ
_raw: dict[Any, Any] | None = getattr(os.environ, "_data", None)


def environment_getter(names: tuple[str, ...]) -> Callable[[], tuple[object, ...]]:
    """A quick function that reads these variables; its values are only good for comparing."""
    if _raw is None:
        return lambda: tuple(os.environ.get(name) for name in names)
    get = _raw.get
    keys = tuple(os.environ.encodekey(name) for name in names)  # type: ignore[attr-defined]

    def read() -> tuple[object, ...]:
        if os.environ is not _environ:  # somebody put another mapping in its place
            return tuple(os.environ.get(name) for name in names)
        return tuple(map(get, keys))

    return read


def shared_memory(nbytes: int) -> torch.Tensor:
    """uint8[nbytes] in shared memory, so that sending it to another process copies nothing.

    The public way, `torch.empty(nbytes).share_memory_()`, allocates and copies it once more.
    torch's own `default_collate` calls the same private method.
    """
    storage = torch.UntypedStorage._new_shared(nbytes, device="cpu")
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)  # type: ignore[call-overload]
