"""All private names of torch that the simulation stands on, each with the versions it was seen in.

Nothing else in `devicekit.testing` names private torch API. A name that the installed torch lacks
is None here, and `require` turns that into one error before anything is touched.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.jit._builtins
import torch.utils._device
import torch.utils.backend_registration

__all__ = ["LOWEST", "MISSING", "require"]

LOWEST = "2.10"
"""The lowest torch whose Python API is enough (`torch._C._acc` came with it)."""

MISSING: list[str] = []


def _find(path: str) -> Any:
    """Return the object at a dotted path below `torch`, or None and a note in `MISSING`."""
    try:
        return functools.reduce(getattr, path.split(".")[1:], torch)
    except AttributeError:
        MISSING.append(path)
        return None


# A device guard, hooks and an empty tensor for the PrivateUse1 key, from Python. Seen in 2.13,
# 2.14.
setup_backend = _find("torch.utils.backend_registration._setup_privateuseone_for_python_backend")
create_empty_tensor = _find("torch._C._acc.create_empty_tensor")
BackendHooks = _find("torch._C._acc.PrivateUse1Hooks")
DeviceGuard = _find("torch._C._acc.DeviceGuard")
DeviceType = _find("torch._C._autograd.DeviceType")
backend_name = _find("torch._C._get_privateuse1_backend_name")
real_accelerator = _find("torch._C._accelerator_getAccelerator")

# Storages over foreign bytes, and the C getters under `Tensor.device` and friends, which a disguise
# on the Python level does not change. Seen in 2.10, 2.13, 2.14.
storage_over = _find("torch._C._construct_storage_from_data_pointer")
tensor_device = _find("torch._C.TensorBase.device.__get__")
StorageBase = _find("torch._C.StorageBase")
storage_device = _find("torch._C.StorageBase.device.__get__")
tensor_data = _find("torch._C.TensorBase.data")
tensor_grad = _find("torch._C.TensorBase.grad")
to_dlpack = _find("torch._C._to_dlpack")
from_dlpack = _find("torch._C._from_dlpack")
set_conj = _find("torch._C._set_conj")
set_neg = _find("torch._C._set_neg")
swap_tensor_impl = _find("torch._C._swap_tensor_impl")

# Dispatch. Seen in 2.10, 2.13, 2.14.
DispatchKey = _find("torch._C.DispatchKey")
DispatchKeySet = _find("torch._C.DispatchKeySet")
ExcludeDispatchKeyGuard = _find("torch._C._ExcludeDispatchKeyGuard")
has_kernel_for = _find("torch._C._dispatch_has_kernel_for_dispatch_key")
DisableTorchFunction = _find("torch._C.DisableTorchFunction")

# The table in which torch.jit looks up factories. Seen in 2.10, 2.13, 2.14.
find_jit_builtin = _find("torch.jit._builtins._find_builtin")
register_jit_builtin = _find("torch.jit._builtins._register_builtin")
# The set of factories that `with torch.device(...)` handles; made, and kept, at its first call.
device_constructors = _find("torch.utils._device._device_constructors")

# Python functions of torch that are replaced while a simulation is active. Seen in 2.10, 2.13,
# 2.14.
engine_run_backward = _find("torch.autograd.graph._engine_run_backward")
has_compatible_shallow_copy_type = _find("torch._has_compatible_shallow_copy_type")

# What the disguise as CUDA replaces or asks. Seen in 2.10, 2.13, 2.14.
tensor_is_cuda = _find("torch._C.TensorBase.is_cuda.__get__")
get_accelerator = _find("torch._C._get_accelerator")
DeviceContext = _find("torch.utils._device.DeviceContext")
init_device_context = _find("torch.utils._device.DeviceContext.__init__")
# What `torch.cuda` keeps in its module; `_get_device_properties` is there once CUDA is initialised.
CUDA_STATE = (
    "_initialized",
    "_is_in_bad_fork",
    "_queued_calls",
    "_lazy_seed_tracker",
    "_lazy_init",
    "_cached_device_count",
    "_device_count_nvml",
    "_device_count_amdsmi",
    "_cudart",
    "_get_device_properties",
    "_exchange_device",
    "_maybe_exchange_device",
)
# Functions of `torch._C`, most of them in `torch` as well, whose first argument is a device type.
AUTOCAST_FUNCTIONS = (
    "is_autocast_enabled",
    "set_autocast_enabled",
    "get_autocast_dtype",
    "set_autocast_dtype",
    "_is_autocast_available",
)

# The namespace through which torch.nn calls recurrent layers, and whether a `torch.func` transform
# is under way. Seen in 2.10, 2.13, 2.14.
VF = _find("torch._VF")
peek_functorch = _find("torch._C._functorch.peek_interpreter_stack")


def functorch_is_active() -> bool:
    """Whether the call happens inside `torch.func.grad`, `vmap` or the like."""
    return peek_functorch() is not None


def stand_in(wrapper: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Let torch.jit take a wrapper for the builtin that it wraps.

    Torch.jit knows builtins by their id, so a wrapper that is collected would leave a wrong entry
    behind: make each once, and keep it.
    """
    found = find_jit_builtin(function)
    if found is not None:
        register_jit_builtin(wrapper, found)


# Tables of functions that Dynamo makes when it is imported. Seen in 2.13, 2.14.
DYNAMO_TABLES = (
    ("torch._dynamo.variables.tensor", "all_tensor_attrs"),
    ("torch._dynamo.variables.torch", "constant_fold_functions"),
    ("torch._dynamo.variables.torch", "constant_fold_functions_need_guards"),
)

# The handle of an overload does what its public `redispatch` does, 1 us faster. Seen in 2.10, 2.13,
# 2.14.
_find("torch.ops.aten.alias.default._handle.redispatch_boxed")


def redispatch(op: Any) -> Callable[..., Any]:
    """Return the function that runs an overload's kernel for the keys given as first argument."""
    return op._handle.redispatch_boxed  # type: ignore[no-any-return]


def require() -> None:
    """Check that the installed torch has every private name that is needed.

    Raises:
        NotImplementedError: A name is missing; the text lists it, and the versions that work.
    """
    if not MISSING:
        return
    raise NotImplementedError(
        f"the simulated accelerator needs torch >= {LOWEST}, and this is torch "
        f"{torch.__version__}: it lacks {', '.join(MISSING)}. Install a newer torch "
        f"(tested with 2.10, 2.13 and 2.14), or run these tests where there is a GPU"
    )
