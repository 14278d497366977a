"""Guards: functions and models that name the tensor which is on the wrong device."""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, overload

import torch
from torch import nn

from devicekit.device import Device
from devicekit.diagnosis.arguments import Argument, report_of_arguments
from devicekit.diagnosis.tensors import is_free
from devicekit.errors import DeviceError, DeviceMismatchError
from devicekit.guards import modules
from devicekit.guards.check import NO_OPTIONS, Check, Options
from devicekit.guards.wrappers import check_of, wrap
from devicekit.tree import find_tensors

__all__ = ["guard", "same_device"]

T = TypeVar("T", bound="Callable[..., Any] | classmethod[Any, ..., Any] | staticmethod[..., Any]")


class _Decorator(Protocol):
    def __call__(self, target: T, /) -> T: ...


class _Guard:
    """Name the tensor that is on the wrong device.

    On the way in, all tensors among the arguments (at any depth) are compared with each other and
    with the modules among them, `self` included. When something fails inside because of devices,
    the error says which statement, which tensor, where it came from, and what to type.

    CPU scalars pass, as in torch. A module that is spread over several devices on purpose is not
    compared; then only failures are explained.

    Args:
        target: A function, a method, or a module (which is changed in place and returned; see
            `remove`). Leave it out to give options.
        device: The device that all must be on, in any form that `Device` takes.
        move: Move the arguments, and the defaults of those not given, to that device, or to that
            of the module, instead of refusing them.
        allow: Names of arguments, or paths such as "batch['lengths']", that may be anywhere.

    Raises:
        DeviceMismatchError: Tensors that meet are on different devices.

    Example:
        >>> import torch
        >>> @guard
        ... def loss(prediction, target):
        ...     return (prediction - target).abs().mean()
        >>> loss(torch.zeros(2), torch.ones(2))
        tensor(1.)
        >>> loss(torch.zeros(2), torch.ones(2, device="meta"))
        Traceback (most recent call last):
        ...
        devicekit.DeviceMismatchError: loss: expected all tensors to be on the same device, but ...
    """

    @overload
    def __call__(
        self,
        target: T,
        /,
        *,
        device: str | int | torch.device | None = None,
        move: bool = False,
        allow: str | Iterable[str] = (),
    ) -> T: ...

    @overload
    def __call__(
        self,
        target: None = None,
        /,
        *,
        device: str | int | torch.device | None = None,
        move: bool = False,
        allow: str | Iterable[str] = (),
    ) -> _Decorator: ...

    def __call__(
        self,
        target: Any = None,
        /,
        *,
        device: str | int | torch.device | None = None,
        move: bool = False,
        allow: str | Iterable[str] = (),
    ) -> Any:
        options = (device, move, (allow,) if isinstance(allow, str) else tuple(allow))
        if target is None:
            return functools.partial(_guard, options=options)
        return _guard(target, options)

    def remove(self, module: nn.Module) -> nn.Module:
        """Undo `guard(module)`; a module that has no guard is left as it is.

        Args:
            module: The module, changed in place and returned.

        Raises:
            TypeError: `module` is no module.
        """
        if not isinstance(module, nn.Module):
            raise TypeError(f"`module` must be a module, but is {reprlib.repr(module)}")
        return modules.remove(module)


# What Python itself says of wrong arguments then names what the user has called.
_Guard.__call__.__qualname__ = "guard"
_Guard.remove.__qualname__ = "guard.remove"

guard = _Guard()


def _guard(target: Any, options: Options) -> Any:
    if isinstance(target, staticmethod | classmethod):
        return type(target)(_guard(target.__func__, options))
    if isinstance(target, torch.jit.ScriptModule):
        raise TypeError(
            f"`target` is a {type(target).__name__}, compiled by torch.jit: its `forward` is not "
            "Python and cannot be guarded; guard the function that calls it"
        )
    if isinstance(target, nn.Module):
        return modules.guard_module(target, options, _guard_function)
    if isinstance(target, type) or not callable(target):
        raise TypeError(
            f"`target` must be a function, a method or a module, but is {target!r}; in a class, "
            "write @guard above `def forward`"
        )
    return _guard_function(target, options)


def _guard_function(
    function: Callable[..., Any], options: Options, owner: str = ""
) -> Callable[..., Any]:
    old = check_of(function)
    if old is not None:
        if options in (NO_OPTIONS, old.options):
            return function
        function = old.function
    _check_names(function, options[2])
    return wrap(Check(function, options, owner))


def _check_names(function: Callable[..., Any], allow: tuple[str, ...]) -> None:
    """Refuse names in `allow` that no argument has: a misspelt one would allow nothing."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a builtin that does not tell its signature
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for name in allow:
        if name.partition("[")[0].partition(".")[0] not in parameters:
            raise ValueError(
                f"`allow` names {name!r}, but {getattr(function, '__qualname__', function)} has "
                f"the arguments {', '.join(parameters)}"
            )


def same_device(*objects: object) -> Device:
    """Return the one device of all tensors in some objects.

    CPU scalars may meet any tensor and do not count, unless there is nothing else.

    Args:
        objects: Tensors, modules, optimizers, batches of any nesting.

    Raises:
        DeviceMismatchError: The tensors are on several devices; the text names them.
        DeviceError: There is no tensor.

    Example:
        >>> import torch
        >>> same_device(torch.zeros(2), {"mask": torch.ones(2)}, torch.nn.Linear(2, 1))
        Device('cpu')
    """
    arguments = [
        Argument(f"objects[{i}]", value, list(find_tensors(value, name=f"objects[{i}]")))
        for i, value in enumerate(objects)
    ]
    tensors = [tensor for argument in arguments for _, tensor in argument.tensors]
    if not tensors:
        raise DeviceError(
            "`same_device` found no tensor in what it was given: give it something that holds one"
        )
    report = report_of_arguments("same_device", arguments, None, sys._getframe(1), rename=True)
    if report is not None:
        raise DeviceMismatchError(str(report))
    return Device.of(next((one for one in tensors if not is_free(one)), tensors[0]))
