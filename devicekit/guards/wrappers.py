"""The functions that stand in the place of guarded ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import torch
from torch import Tensor, nn

from devicekit.guards.check import Check
from devicekit.guards.places import nearest_parameter

__all__ = ["check_of", "wrap"]

_is_compiling = torch.compiler.is_compiling


def wrap(check: Check) -> Callable[..., Any]:
    """Make the function that checks its arguments, calls the guarded one and explains failures."""
    function = check.function
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator(check)
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine(check)
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(check)
    elif check.is_method and check.options == (None, False, ()):
        wrapper = _wrap_method(check)
    else:
        wrapper = _wrap_function(check)
    wrapper.__devicekit_guard__ = check  # type: ignore[attr-defined]
    return wrapper


def check_of(function: object) -> Check | None:
    """The check of a guarded function, or None."""
    check = getattr(function, "__devicekit_guard__", None)
    return check if isinstance(check, Check) else None


def _wrap_method(check: Check) -> Callable[..., Any]:
    """Wrap a method without options: of a module, it is nearly free while all is well.

    The device is that of the parameter which the last module looked at has nearest: the names on
    the way to it are walked at each call, so nothing can be out of date.
    """
    function = check.function
    way: tuple[str, ...] = ()
    key = ""

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal way, key
        if _is_compiling():
            return function(self, *args, **kwargs)
        try:
            owner = self
            for name in way:
                owner = owner._modules[name]
            device = owner._parameters[key].device
            for value in (*args, *kwargs.values()) if kwargs else args:
                if type(value) is Tensor:
                    if value.device != device:
                        break
                elif value is not None:
                    break
            else:
                device = None
        except (AttributeError, KeyError):  # another module, or no module at all
            device = ...
        if device is not None:
            check.enter((self, *args), kwargs)
            if isinstance(self, nn.Module):
                way, key = nearest_parameter(self) or ((), "")
        try:
            return function(self, *args, **kwargs)
        except Exception as error:
            check.raise_explained(error, (self,))
            raise

    return wrapper


def _wrap_function(check: Check) -> Callable[..., Any]:
    function = check.function
    is_simple = check.options == (None, False, ())

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return function(*args, **kwargs)
        device = None
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is not Tensor or not is_simple:
                args, kwargs = check.enter(args, kwargs)
                break
            if device is None:
                device = value.device
            elif value.device != device:
                check.enter(args, kwargs)
                break
        try:
            return function(*args, **kwargs)
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_coroutine(check: Check) -> Callable[..., Any]:
    function = check.function

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = check.enter(args, kwargs)
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_generator(check: Check) -> Callable[..., Any]:
    function = check.function

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        args, kwargs = check.enter(args, kwargs)
        try:
            return (yield from function(*args, **kwargs))
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_async_generator(check: Check) -> Callable[..., Any]:
    function = check.function

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        args, kwargs = check.enter(args, kwargs)
        generator = function(*args, **kwargs)
        try:
            value = await generator.__anext__()
            while True:
                try:
                    sent = yield value
                except GeneratorExit:
                    await generator.aclose()
                    raise
                except BaseException as thrown:  # handed on to the generator, as `yield from` does
                    value = await generator.athrow(thrown)
                else:
                    value = await generator.asend(sent)
        except StopAsyncIteration:
            return
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper
