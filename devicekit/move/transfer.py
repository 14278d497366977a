"""to_device on the walker's way: every type, every option, every explanation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from devicekit.device.spec import show
from devicekit.errors import MoveError, warn
from devicekit.move.foreign import move_foreign, moves_itself
from devicekit.move.modules import move_module, move_optimizer
from devicekit.tree import Step, describe, find_hidden, find_tensors, mapped_in_two_steps
from devicekit.tree.anatomy import is_a

__all__ = ["Transfer"]

T = TypeVar("T")

_NARROWER = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_ROOT = "data"  # what the structure is called in paths


class Transfer:
    """One call of `to_device`: where to, how, and which copies are still on their way."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype | None = None,
        non_blocking: bool | Literal["auto"] = "auto",
        strict: bool = False,
        skip: Collection[object] = (),
        memo: dict[int, Any] | None = None,
    ) -> None:
        is_floating = type(dtype) is torch.dtype and dtype.is_floating_point
        if dtype is not None and not is_floating:
            raise ValueError(f"`dtype` must be a floating-point dtype, but is {show(dtype)}")
        if type(non_blocking) is not bool and (type(non_blocking), non_blocking) != (str, "auto"):
            raise ValueError(
                f"`non_blocking` must be True, False or 'auto', but is {show(non_blocking)}"
            )
        self.device = device
        self.dtype = dtype
        self.non_blocking = non_blocking
        self.strict = strict
        self.skipped = _names(skip)
        self.skips_paths = any(type(x) is str and not x.isidentifier() for x in self.skipped)
        # What has become of the objects that are no containers, by `id`.
        self.settled: dict[int, Any] = {
            k: v for k, v in (memo or {}).items() if isinstance(v, Tensor)
        }
        self.keep_alive: list[object] = []  # so that no `id` is used twice
        self.is_contested = False
        self.data: object = None
        self.sources: set[torch.device] = set()  # accelerators with copies to the host under way
        self.narrowed: tuple[str, torch.dtype] | None = None  # the first that the device lacks

    def run(self, data: T) -> T:
        """Move `data`, wait for what has to be waited for, and check what has to be checked."""
        self.data = data
        try:
            moved = self.map(data)
            if self.is_contested:  # tensors that came before the module that owns them
                moved = self.map(data)
        finally:
            self.wait()
        if self.narrowed is not None:
            path, dtype = self.narrowed
            warn(
                f"{self.device.type} has no {_name(dtype)}: {path}, and every other tensor of this "
                f"dtype, became {_name(_NARROWER[dtype])}. Pass `dtype=torch.float32` to say that "
                "you want this"
            )
        if self.strict:
            self.check(moved)
        return moved

    def map(self, data: T) -> T:
        """Move `data`; what was moved before is not moved again."""
        build = mapped_in_two_steps(
            data,
            self.tensor,
            other=self.other,
            name=_ROOT,
            note=self.note,
            skip=self.is_skipped if self.skipped else None,
            memo=self.settled.copy(),
        )
        self.wait()  # what is built may look at its tensors
        return build()

    def wait(self) -> None:
        """Wait for the copies to the host."""
        for source in self.sources:
            torch.get_device_module(source).current_stream(source).synchronize()
        self.sources.clear()

    def settle(self, x: Tensor, moved: Tensor) -> None:
        """Remember what a module made of a tensor that it owns: so must all who refer to it."""
        self.is_contested |= self.settled.get(id(x), moved) is not moved
        self.settled[id(x)] = moved
        self.keep_alive.append(x)

    def tensor(self, x: Tensor) -> Tensor:
        """Move a tensor or parameter."""
        if id(x) not in self.settled:
            self.settled[id(x)] = self.moved(x)
            self.keep_alive.append(x)
        moved: Tensor = self.settled[id(x)]
        return moved

    def moved(self, x: Tensor) -> Tensor:
        """The tensor on the device."""
        dtype = self.dtype if x.is_floating_point() else None
        if x.device == self.device and dtype in (None, x.dtype):
            return x
        if isinstance(x, nn.Parameter):
            return self.parameter(x, dtype)
        moved = self.copy(x, dtype)
        return moved if type(x) is Tensor else _like_subclass(moved, x)

    def copy(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Copy a tensor to the device, narrowed if the device lacks its dtype."""
        non_blocking = self.is_asynchronous(x)
        try:
            return x.to(self.device, dtype, non_blocking)
        except TypeError as error:
            # MPS: "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't
            # support float64. Please use float32 instead."
            if dtype is not None or x.dtype not in _NARROWER or "float64" not in str(error):
                raise
            narrower = self.narrow(x)
        return x.to(narrower).to(self.device, None, non_blocking)

    def narrow(self, x: Tensor) -> torch.dtype:
        """The dtype that the device has in place of the tensor's; raises if `strict`."""
        if self.strict:
            raise MoveError(
                f"{self.device.type} has no {_name(x.dtype)}, which is the dtype of "
                f"{self.path_of(x)}: pass `dtype=torch.float32`, or convert it before"
            )
        if self.narrowed is None:
            self.narrowed = (self.path_of(x), x.dtype)
        return _NARROWER[x.dtype]

    def is_asynchronous(self, x: Tensor) -> bool:
        """Whether the copy of a tensor may still run when `.to` returns.

        A copy to the host may if it starts from an accelerator: `run` waits for all of them. A copy
        to an accelerator may from pinned memory, which torch keeps until the copy is done, and on
        CUDA from any memory, as the driver first copies pageable memory aside. MPS does neither:
        https://github.com/pytorch/pytorch/issues/189690
        """
        kinds = (x.device.type, self.device.type)
        if self.non_blocking is False or "mps" in kinds or "meta" in kinds:
            return False
        if self.device.type == "cpu":
            if x.device.type == "cpu":
                return False
            self.sources.add(x.device)
            return True
        if self.non_blocking is True or self.device.type == "cuda":
            return True
        return not is_lazy(x) and x.is_pinned()

    def parameter(self, x: nn.Parameter, dtype: torch.dtype | None) -> Tensor:
        """Move a parameter: it stays one, a leaf, with its grad and what else hangs on it."""
        if "to" in vars(type(x)):  # such as a quantized parameter
            return x.to(self.device)
        moved: Tensor
        data = self.copy(x.detach(), dtype)
        if type(x) is not nn.Parameter and issubclass(type(x), nn.Parameter):
            moved = data.as_subclass(type(x)).requires_grad_(x.requires_grad)
        else:
            moved = nn.Parameter(data, requires_grad=x.requires_grad)
        if x.grad is not None:
            moved.grad = self.copy(x.grad, dtype).to(data.dtype)
        for name, value in vars(x).items():
            vars(moved).setdefault(name, value)
        return moved

    def other(self, x: object) -> object:
        """Move what the walker does not look into, or leave it as it is."""
        if id(x) not in self.settled:
            self.settled[id(x)] = self.moved_other(x)
            self.keep_alive.append(x)
        return self.settled[id(x)]

    def moved_other(self, x: object) -> object:
        """The object on the device."""
        # By the type, not by `isinstance`: a proxy of a module belongs to somebody else, and may
        # raise when asked what it stands for.
        if issubclass(type(x), nn.Module):
            return move_module(cast(nn.Module, x), self)
        if issubclass(type(x), torch.optim.Optimizer):
            return move_optimizer(cast(torch.optim.Optimizer, x), self)
        if moves_itself(type(x)):
            asynchronous = self.non_blocking is not False and self.device.type == "cuda"
            return move_foreign(x, self.device, asynchronous)
        return x

    def is_skipped(self, step: Step, path_of: Callable[[], str]) -> bool:
        """Whether the caller wants this child to stay where it is."""
        if step.key in self.skipped:
            return True
        if not self.skips_paths:  # a deep path takes long to write
            return False
        path = path_of()
        return path in self.skipped or path.removeprefix(_ROOT) in self.skipped

    def note(self, path: str, x: object) -> str:
        """What an error says of the object at which it was raised."""
        origin = f" from {x.device}" if is_a(x, Tensor) else ""
        return f"while moving {path} ({describe(x)}){origin} to {self.device}"

    def path_of(self, x: Tensor) -> str:
        """The path of a tensor in the structure."""
        return next((path for path, t in find_tensors(self.data, name=_ROOT) if t is x), "a tensor")

    def check(self, moved: object) -> None:
        """Raise if a tensor of the result is elsewhere."""
        left = [
            f"{path} ({describe(tensor)}) on {tensor.device}"
            for path, tensor in find_hidden(moved, name=_ROOT, leave=self.is_exempt)
            if tensor.device != self.device
        ]
        if not left:
            return
        shown = "\n  ".join(left[:8]) + (f"\n  and {len(left) - 8} more" if len(left) > 8 else "")
        raise MoveError(
            f"`strict` found {len(left)} tensor{'s' if len(left) > 1 else ''} that did not move to "
            f"{self.device}:\n  {shown}\nThey are inside objects that cannot be looked into: teach "
            "them with `to_device.register`, or leave them out with `skip`"
        )

    def is_exempt(self, step: Step, path_of: Callable[[], str], x: object) -> bool:
        """Whether it may stay elsewhere: skipped, or an optimizer, which has its own rule."""
        return is_a(x, torch.optim.Optimizer) or self.is_skipped(step, path_of)


def _names(skip: Collection[object]) -> set[object]:
    try:
        return {skip} if isinstance(skip, str) else set(skip)
    except Exception as error:  # no collection, one that refuses, or one with what is no key
        raise TypeError(
            "`skip` must be a collection of keys, attribute names and paths, such as ('mask',), "
            f"but is {show(skip)}"
        ) from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _like_subclass(moved: Tensor, x: Tensor) -> Tensor:
    """Give back to a moved tensor the type and attributes that its `.to` dropped."""
    cls = type(x)
    if type(moved) is Tensor and cls.__torch_dispatch__ is Tensor.__torch_dispatch__:
        moved = moved.as_subclass(cls)
    if type(moved) is cls and hasattr(x, "__dict__"):
        for name, value in vars(x).items():
            vars(moved).setdefault(name, value)
    return moved
