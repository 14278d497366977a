"""The one module that names private API of torch, or knows what changed between its versions.

Each function here says what it stands for and has a test that fails when torch changes it.
"""

import copy
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import _lru_cache_wrapper, cache, lru_cache
from mmap import ACCESS_READ, mmap
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils import collate

__all__ = [
    "KEPT_ITERATOR",
    "collate_for_packing",
    "cuda_arch_list",
    "cuda_is_simulated",
    "current_accelerator",
    "current_index",
    "is_compiled",
    "is_loss",
    "is_replaced",
    "loader_is_healthy",
    "ordinals_of_uuids",
    "private_backend",
    "restarted",
    "shared_memory",
    "started_loader",
    "stop_loader",
    "surroundings_cover",
    "surroundings_getter",
    "torch_knows",
    "visible_devices",
    "when_cuda_starts",
]


def private_backend() -> str | None:
    """The name of the registered PrivateUse1 backend, or None.

    torch has a public way to set the name (`torch.utils.rename_privateuse1_backend`), none to
    read it.
    """
    name: str = torch._C._get_privateuse1_backend_name()
    return None if name == "privateuseone" else name


def cuda_arch_list() -> tuple[str, ...]:
    """The GPU architectures that this build of torch has kernels for; empty if unknown.

    `torch.cuda.get_arch_list` says it too, but marks the process as one whose forked children
    cannot use CUDA (as of torch 2.14), and up to torch 2.9 also initialises the driver. So before
    CUDA is in use, the text is read from torch's library, where it stands between other texts.
    """
    cuda = torch.cuda
    if cuda.is_initialized() or not hasattr(os, "fork"):  # type: ignore[no-untyped-call]
        return tuple(cuda.get_arch_list())
    return _arch_list_in_library()


_ARCHS = re.compile(rb"sm_[0-9]+[af]?(?: (?:sm|compute)_[0-9]+[af]?)*\0")


@cache
def _arch_list_in_library() -> tuple[str, ...]:
    path = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_python.so")
    try:
        with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            found = {match[0] for match in _ARCHS.finditer(content)}
    except OSError:
        return ()
    if len(found) != 1:
        return ()
    return tuple(found.pop().rstrip(b"\0").decode().split())


def visible_devices() -> list[int] | list[str]:
    """`CUDA_VISIBLE_DEVICES` as torch reads it: ordinals, or (prefixes of) UUIDs."""
    return torch.cuda._parse_visible_devices()


def ordinals_of_uuids(masks: list[str], uuids: list[str]) -> list[int]:
    """The positions in `uuids` that the UUIDs or unambiguous prefixes in `masks` select."""
    return torch.cuda._transform_uuid_to_ordinals(masks, uuids)


def is_replaced(function: object, module: ModuleType) -> bool:
    """Whether somebody put another function in the place of torch's own: a mock, a simulation."""
    if isinstance(function, _lru_cache_wrapper):
        function = function.__wrapped__  # torch.backends.mps.is_available
    if not isinstance(function, FunctionType):
        return True
    return function.__code__.co_filename != module.__file__


def cuda_is_simulated() -> bool:
    """Whether Python functions answer for CUDA's C functions, as `devicekit.testing` lets them.

    The registered PrivateUse1 backend is then the one behind the name "cuda".
    """
    return isinstance(vars(torch._C).get("_cuda_getDeviceCount"), FunctionType)


def when_cuda_starts(function: Callable[[], object]) -> None:
    """Call `function` when CUDA is initialised; at once if it is already.

    torch has this for its own settings, which it keeps until there is a CUDA to apply them to.
    """
    torch.cuda._lazy_call(function)  # type: ignore[no-untyped-call]


def is_loss(value: object) -> bool:
    """Whether it is one of torch's loss modules, whose common class is private."""
    return isinstance(value, torch.nn.modules.loss._Loss)


def is_compiled(module: ModuleType) -> bool:
    """Whether torch was built with the backend of this device module; True where it cannot say."""
    return bool(getattr(module, "_is_compiled", lambda: True)())


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


@lru_cache(1000)
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


def surroundings_getter(variables: tuple[str, ...]) -> Callable[[], tuple[object, ...]]:
    """A quick function that returns all that can change which device is chosen, for comparing.

    It reads the environment variables, the current CUDA device, the state of a registered backend,
    and which functions answer for torch: tests and simulations put others in their place.
    """
    keys = tuple(os.environ.encodekey(name) for name in variables) if _raw is not None else ()
    get = _raw.get if _raw is not None else None
    cuda, mps, names, c_names = torch.cuda, torch.backends.mps, vars(torch), vars(torch._C)
    private_name = torch._C._get_privateuse1_backend_name

    def surroundings() -> tuple[object, ...]:
        if get is not None and os.environ is _environ:
            values = tuple(map(get, keys))
        else:  # another system, or somebody put another mapping in its place
            values = tuple(map(os.environ.get, variables))
        backend = private_name()
        return (
            values,
            cuda.is_available,
            cuda.device_count,
            mps.is_available,
            c_names.get("_cuda_getDeviceCount"),
            "hpu" in names,  # an extension that needs no registration
            cuda.current_device() if cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
            backend if backend == "privateuseone" else _state(backend),
        )

    return surroundings


def _state(backend: str) -> tuple[object, ...]:
    module = getattr(torch, backend, None)
    try:
        if module is None or not module.is_available():
            return (backend,)
        return (backend, module.device_count(), module.current_device())
    # Whatever a backend raises here, the probe raises it again and turns it into a reason.
    except Exception:
        return (backend,)


def surroundings_cover(type: str) -> bool:
    """Whether the surroundings hold all that the choice of a device of this type rests on.

    Not so for mocks, which may change their mind, and for backends whose current device is not
    among the surroundings.
    """
    if type not in ("cpu", "meta", "cuda", "mps", private_backend()):
        return False
    cuda, mps = torch.cuda, torch.backends.mps
    replaced = (
        is_replaced(cuda.is_available, cuda)
        or is_replaced(cuda.device_count, cuda)
        or is_replaced(mps.is_available, mps)
    )
    return not replaced


def shared_memory(nbytes: int) -> torch.Tensor:
    """uint8[nbytes] in shared memory, so that sending it to another process copies nothing.

    The public way, `torch.empty(nbytes).share_memory_()`, allocates and copies it once more.
    torch's own `default_collate` calls the same private method.
    """
    storage = torch.UntypedStorage._new_shared(nbytes, device="cpu")  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)


def started_loader(
    loader: torch.utils.data.DataLoader[Any], changes: Mapping[str, Any]
) -> Iterator[Any]:
    """Torch's own iterator over `loader`, made with other values of some of its attributes.

    The iterator reads its settings from the loader while it is made. The loader is left as it is:
    who inspects it, or makes another one from it, sees what its caller asked for.
    """
    view = copy.copy(loader)
    vars(view).update({name: value for name, value in changes.items() if name != _CONTEXT})
    # It has warned when `loader` was made.
    view.check_worker_number_rationality = lambda: None  # type: ignore[method-assign]
    if _CONTEXT in changes:
        view.multiprocessing_context = changes[_CONTEXT]  # a property
    iterator = torch.utils.data.DataLoader._get_iterator(view)
    if view.persistent_workers:
        setattr(loader, KEPT_ITERATOR, iterator)
    return iterator


_CONTEXT = "multiprocessing_context"

KEPT_ITERATOR = "_iterator"
"""The attribute of torch's loader for the iterator whose workers it keeps; others clear it."""


def restarted(loader: torch.utils.data.DataLoader[Any], iterator: Any) -> bool:
    """Begin another epoch with the workers of `iterator`, if `loader` still keeps them."""
    if getattr(loader, KEPT_ITERATOR) is not iterator:
        return False
    iterator._reset(loader)
    return True


def stop_loader(iterator: object) -> None:
    """Stop the workers and the pinning thread of torch's iterator, if it has any."""
    stop = getattr(iterator, "_shutdown_workers", None)
    if stop is not None:
        stop()
        # torch leaves this to reference counting; a thread that has written to it keeps it alive.
        iterator._worker_result_queue.close()  # type: ignore[attr-defined]


def loader_is_healthy(iterator: object) -> bool:
    """Whether the workers and the pinning thread of torch's iterator are alive, if it has any."""
    workers = getattr(iterator, "_workers", ())
    thread = getattr(iterator, "_pin_memory_thread", None)
    return all(worker.is_alive() for worker in workers) and (thread is None or thread.is_alive())


def current_accelerator() -> torch.device | None:
    """The type of accelerator that this build of torch is for, usable or not, or None.

    torch 2.6 raises where there is no accelerator; later versions return None.
    """
    try:
        return torch.accelerator.current_accelerator()
    except RuntimeError as error:
        if "none is available" not in str(error):
            raise
        return None


def collate_for_packing(samples: Any, limit: int) -> Any:
    """Torch's `default_collate`, without shared memory for tensors smaller than `limit` bytes.

    In a worker `default_collate` makes a file in shared memory for each tensor, which for a small
    one takes longer than all else together, and is in vain if the tensor is packed afterwards.
    Who put a function of their own in the place of torch's for tensors gets what that makes.
    """
    if collate.default_collate_fn_map[Tensor] is not collate.collate_tensor_fn:
        return torch.utils.data.default_collate(samples)

    def stacked(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        small = first.is_cpu and first.layout is torch.strided and not first.is_nested
        if small and first.nbytes * len(batch) < limit:
            return torch.stack(batch)
        return collate.default_collate_fn_map[Tensor](batch, collate_fn_map=collate_fn_map)

    kinds = {**collate.default_collate_fn_map, Tensor: stacked}
    return collate.collate(samples, collate_fn_map=kinds)
