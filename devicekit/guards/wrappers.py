"""The functions that stand in the place of guarded ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from devicekit.guards.check import NO_OPTIONS, Check
from devicekit.guards.places import nearest_parameter
from devicekit.move import to_device

__all__ = ["check_of", "wrap"]

# While Dynamo traces, this is True, and the check leaves no trace in the compiled code.
_is_compiling = torch.compiler.is_dynamo_compiling


def wrap(check: Check) -> Callable[..., Any]:
    """Make the function that checks its arguments, calls the guarded one and explains failures."""
    function = check.function
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator(check)
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine(check)
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(check)
    elif check.is_method and check.options == NO_OPTIONS:
        wrapper = _wrap_method(check)
    else:
        wrapper = _wrap_function(check)
    wrapper.__devicekit_guard__ = check  # type: ignore[attr-defined]
    return wrapper


def check_of(function: object) -> Check | None:
    """The check of a guarded function, or None."""
    check = getattr(function, "__devicekit_guard__", None)
    return check if isinstance(check, Check) else None


_TEMPLATE = """
def {name}({parameters}):
    if _dk_is_compiling():
        return _dk_function({parameters})
    try:
        _dk_owner = {me}._modules[_dk_first] if _dk_first else {me}
        if _dk_rest:
            for _dk_name in _dk_rest:
                _dk_owner = _dk_owner._modules[_dk_name]
        _dk_device = _dk_owner._parameters[_dk_key].device
        _dk_agree = {agree}
    except (AttributeError, KeyError):
        _dk_agree = False
    if not _dk_agree:
        _dk_enter({parameters})
    try:
        return _dk_function({parameters})
    except Exception as _dk_error:
        _dk_explain(_dk_error, ({me},))
        raise
"""


def _wrap_method(check: Check) -> Callable[..., Any]:
    """Wrap a method without options: of a module, it is nearly free while all is well.

    The device is that of the parameter which the last module looked at has nearest: the names on
    the way to it are walked at each call, so nothing can be out of date.

    The wrapper is made from a text, with the arguments of the method: to pass on `*args` and
    `**kwargs` takes as long as all the rest.
    """
    names = _plain_names(check.function)
    if names is None:
        return _wrap_function(check)
    me, *others = names

    def enter(self: Any, *args: Any) -> None:
        check.enter((self, *args), {}, depth=3)
        if isinstance(self, nn.Module):
            way, space["_dk_key"] = nearest_parameter(self) or ((), "")
            space["_dk_first"], space["_dk_rest"] = way[0] if way else "", way[1:]

    agree = " and ".join(
        f"(type({name}) is _dk_Tensor and {name}.device == _dk_device or {name} is None)"
        for name in others
    )
    space: dict[str, Any] = {
        "_dk_Tensor": Tensor,
        "_dk_enter": enter,
        "_dk_explain": check.raise_explained,
        "_dk_first": "",  # one step is the usual, and cheaper than a loop
        "_dk_function": check.function,
        "_dk_is_compiling": _is_compiling,
        "_dk_key": "",
        "_dk_rest": (),
    }
    source = _TEMPLATE.format(
        name=check.function.__name__ if check.function.__name__.isidentifier() else "guarded",
        parameters=", ".join(names),
        me=me,
        agree=agree or "True",
    )
    exec(compile(source, "<devicekit guard>", "exec"), space)
    wrapper: Callable[..., Any] = space[source.partition("def ")[2].partition("(")[0]]
    wrapper.__defaults__ = check.function.__defaults__
    return functools.wraps(check.function)(wrapper)


def _plain_names(function: Callable[..., Any]) -> list[str] | None:
    """The arguments of a function, if each may be given by position and by name."""
    if not isinstance(function, FunctionType):
        return None
    parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    if any(one.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters):
        return None
    names = [one.name for one in parameters]
    return names if names and not any(name.startswith("_dk_") for name in names) else None


def _wrap_function(check: Check) -> Callable[..., Any]:
    function = check.function
    is_simple = check.options == NO_OPTIONS

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            if check.moves:
                args, kwargs = _moved_in_a_graph(check, args, kwargs)
            return function(*args, **kwargs)
        if check.defaults and not args and not kwargs:
            args, kwargs = check.enter(args, kwargs)
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


def _moved_in_a_graph(
    check: Check, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move arguments while Dynamo traces: with what it can trace."""
    device = _demanded(check)
    for value in (*args, *kwargs.values()):
        if device is None and isinstance(value, nn.Module):
            device = next((one.device for one in value.parameters()), None)
    if device is None:
        return args, kwargs
    moved = [
        value
        if isinstance(value, nn.Module) or check.is_allowed_at(i)
        else to_device(value, device)
        for i, value in enumerate(args)
    ]
    named = {
        name: value
        if isinstance(value, nn.Module) or name in check.allow
        else to_device(value, device)
        for name, value in {**check.defaults_of(args, kwargs), **kwargs}.items()
    }
    return tuple(moved), named


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _demanded(check: Check) -> torch.device | None:
    return check.target()


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
