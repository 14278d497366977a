"""What one guard demands of a call, and what it says when that is not so."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.device import Device
from devicekit.diagnosis.arguments import Argument, report_of_arguments
from devicekit.diagnosis.explanation import report_of
from devicekit.diagnosis.tensors import is_free
from devicekit.errors import DeviceMismatchError
from devicekit.guards.places import Spread, device_of, look_at
from devicekit.move import to_device
from devicekit.tree import find_tensors

__all__ = ["NO_OPTIONS", "Check", "Options"]

Options = tuple[str | int | torch.device | None, bool, tuple[str, ...]]
"""`device`, `move` and `allow` of a guard."""

NO_OPTIONS: Options = (None, False, ())

_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None), torch.device, torch.dtype})


class Check:
    """The demands of one guard on the calls of one function.

    Attributes:
        function: What is guarded.
        options: What the guard was given.
        owner: The name of the class of a module on which the function was put; it is given no
            `self` then.
        is_method: Whether the first argument is `self` or `cls`.
    """

    def __init__(self, function: Callable[..., Any], options: Options, owner: str = "") -> None:
        self.function = function
        self.owner = owner
        self.options = options
        self.demanded, self.moves, self.allow = options
        self.names = _positional_names(function)
        self.is_method = not owner and (
            self.names[:1] in (["self"], ["cls"]) or _is_forward(function)
        )
        self.defaults = _defaults(function) if self.moves else {}
        self._device: torch.device | None = None

    def target(self) -> torch.device | None:
        """The device that was demanded, resolved when it is first needed."""
        if self._device is None and self.demanded is not None:
            self._device = Device(self.demanded).torch
        return self._device

    def enter(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 2
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the arguments of a call, or move them.

        Args:
            args: The positional arguments.
            kwargs: The keyword arguments.
            depth: How many frames up the caller of the guarded function is.

        Returns:
            The arguments to go on with.
        """
        if self.moves:
            args, kwargs = self._moved(args, kwargs)
        if not self._agree(args, kwargs):
            self._refuse(args, kwargs, sys._getframe(depth))
        return args, kwargs

    def raise_explained(self, error: Exception, args: tuple[Any, ...]) -> None:
        """Raise the error that names the culprit; return if the error is about something else."""
        try:
            text = self._explanation(error, args)
        except Exception:  # nothing is lost: the caller raises the function's own error
            return
        if text is not None:
            raise DeviceMismatchError(text) from error

    def _explanation(self, error: Exception, args: tuple[Any, ...]) -> str | None:
        if isinstance(error, DeviceMismatchError) and "\n" in str(error):
            return None  # a guard further inside has said it
        report = report_of(error, self.where(args))
        return None if report is None else str(report)

    def where(self, args: tuple[Any, ...]) -> str:
        """The name of what is guarded, as its user knows it: `Net.forward`."""
        if self.owner:
            return f"{self.owner}.forward"
        function = self.function
        name = getattr(function, "__qualname__", type(function).__name__)
        name = name.rpartition("<locals>.")[2]
        inner = inspect.unwrap(function)
        if isinstance(inner, MethodType) and isinstance(inner.__self__, nn.Module):
            return f"{type(inner.__self__).__name__}.forward"  # of a compiled module
        if self.is_method and args and "." in name:
            owner = args[0] if isinstance(args[0], type) else type(args[0])
            return f"{owner.__name__}.{name.rpartition('.')[2]}"
        return str(name)

    # Comparing

    def _agree(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Say whether all tensors are on one device; a no is looked into by `_refuse`."""
        device = self.target()
        for _, value in self._compared(args, kwargs):
            if isinstance(value, nn.Module):
                found = device_of(value)
                if isinstance(found, Spread):
                    return True
                if found is not None and device is not None and found != device:
                    return False
                device = device or found
                continue
            for tensor in (value,) if isinstance(value, Tensor) else _tensors_in(value):
                if tensor.device == device or is_free(tensor):
                    continue
                if device is not None:
                    return False
                device = tensor.device
        return True

    def _compared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[int | str, Any]]:
        """The arguments that may hold tensors, with their positions or names."""
        for position, value in enumerate(args):
            if type(value) in _PLAIN or isinstance(value, Optimizer):
                continue
            if position == 0 and self.is_method and not isinstance(value, nn.Module):
                continue
            if self.is_allowed_at(position):
                continue
            yield position, value
        for name, value in kwargs.items():
            if type(value) in _PLAIN or isinstance(value, Optimizer) or name in self.allow:
                continue
            yield name, value

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> None:
        """Raise the error that lists what is where, unless a close look finds all well."""
        named = _bind(self.function, args, kwargs)
        if named is None:  # the call itself is wrong, and Python will say how
            return
        arguments = []
        compared = {id(value) for _, value in self._compared(args, kwargs)}
        for name, value in named:
            if id(value) not in compared:
                continue
            if isinstance(value, nn.Module) and isinstance(look_at(value), Spread):
                return
            tensors = [
                (path, tensor)
                for path, tensor in find_tensors(value, name=name)
                if not self._is_allowed(path)
            ]
            if tensors:
                arguments.append(Argument(name, value, tensors))
        report = report_of_arguments(self.where(args), arguments, self.target(), frame)
        if report is not None:
            raise DeviceMismatchError(str(report))

    def is_allowed_at(self, position: int) -> bool:
        """Whether a positional argument may be anywhere."""
        return position < len(self.names) and self.names[position] in self.allow

    def _is_allowed(self, path: str) -> bool:
        return any(path == name or path.startswith((f"{name}[", f"{name}.")) for name in self.allow)

    # Moving

    def _moved(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        device = self.target() or self._device_of_arguments(args, kwargs)
        if device is None:
            return args, kwargs
        movable = {
            key: value
            for key, value in self._compared(args, kwargs)
            if not isinstance(value, nn.Module)
        }
        defaults = self.defaults_of(args, kwargs)
        moved = to_device({**movable, **defaults}, device)
        new = [moved.get(position, value) for position, value in enumerate(args)]
        return tuple(new), {
            name: moved.get(name, value) for name, value in {**defaults, **kwargs}.items()
        }

    def defaults_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The defaults with tensors that a call takes: of the arguments it does not give."""
        given = {*self.names[: len(args)], *kwargs, *self.allow}
        return {name: value for name, value in self.defaults.items() if name not in given}

    def _device_of_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.device | None:
        """The device of the first module among the arguments, else of their first accelerator."""
        values = [value for _, value in self._compared(args, kwargs)]
        for value in values:
            found = device_of(value) if isinstance(value, nn.Module) else None
            if isinstance(found, torch.device):
                return found
        for value in values:
            for tensor in _tensors_in(value) if not isinstance(value, nn.Module) else ():
                if tensor.device.type not in ("cpu", "meta"):
                    return tensor.device
        return None


def _tensors_in(value: object) -> Iterable[Tensor]:
    return (tensor for _, tensor in find_tensors(value))


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults that bring tensors, of arguments that may be given by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell its signature
        return {}
    return {
        one.name: one.default
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        and one.default is not one.empty
        and not isinstance(one.default, nn.Module)
        and any(True for _ in _tensors_in(one.default))
    }


def _is_forward(function: Callable[..., Any]) -> bool:
    """Whether this is a module's `forward`, whatever it calls its `self`."""
    return getattr(function, "__qualname__", "").rpartition("<locals>.")[2].endswith(".forward")


def _positional_names(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin that does not tell its signature
        return []
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    return [one.name for one in parameters if one.kind in positional]


def _bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]] | None:
    """The arguments of a call with their names; None if the call does not fit the signature."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not tell its signature
        return [*((f"args[{i}]", value) for i, value in enumerate(args)), *kwargs.items()]
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return None
    found: list[tuple[str, Any]] = []
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found += value.items()
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found += [(f"{name}[{i}]", one) for i, one in enumerate(value)]
        else:
            found.append((name, value))
    return found
