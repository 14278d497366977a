"""Guards: functions and models that name the tensor which is on the wrong device."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.device import Device
from devicekit.errors import DeviceError, DeviceMismatchError
from devicekit.tree import find_tensors

__all__ = ["guard", "same_device"]

T = TypeVar("T", bound="Callable[..., Any] | classmethod[Any, ..., Any] | staticmethod[..., Any]")

_is_compiling = torch.compiler.is_compiling
_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None), torch.device, torch.dtype})


class _Decorator(Protocol):
    def __call__(self, target: T, /) -> T: ...


# The device of a module: where to look, without walking over its parameters


class _Spread:
    """Stands for the place of a module whose tensors are on several devices."""


_SPREAD = _Spread()

# For each module that was guarded: the names on the way to its nearest parameter or buffer. Only
# text is kept, and the way is walked at each call, so the answer is right whatever was moved or
# replaced since; at worst there is nothing at the end, and the module is looked at again.
_Place = tuple[tuple[str, ...], str, str]
_places: dict[int, _Place] = {}


def _forget(key: int, _reference: object) -> None:
    _places.pop(key, None)


_references: dict[int, weakref.ref[nn.Module]] = {}


def _device_of_module(module: nn.Module) -> torch.device | _Spread | None:
    """The device of a module by looking at all of it; remembers where the nearest tensor is."""
    if _is_dispatched(module):
        return _SPREAD
    nearest: _Place | None = None
    devices: set[torch.device] = set()
    for names, owner in _with_names(module):
        for registry in ("_parameters", "_buffers"):
            for key, tensor in getattr(owner, registry).items():
                if tensor is None or (tensor.dim() == 0 and tensor.device.type == "cpu"):
                    continue
                devices.add(tensor.device)
                place = (names, registry, key)
                if nearest is None or len(names) < len(nearest[0]):
                    nearest = place
    if len(devices) > 1:
        return _SPREAD
    if nearest is None:
        return None
    key_ = id(module)
    if key_ not in _references or _references[key_]() is not module:
        _references[key_] = weakref.ref(module, functools.partial(_drop, key_))
    _places[key_] = nearest
    return devices.pop()


def _drop(key: int, reference: object) -> None:
    _places.pop(key, None)
    _references.pop(key, None)


def _is_dispatched(module: nn.Module) -> bool:
    """Whether something else places the parts of a module: accelerate, or a pipeline of it."""
    own = vars(module)
    placed = own.get("hf_device_map")
    if placed is not None and len(set(map(str, placed.values()))) > 1:
        return True
    return any("_hf_hook" in vars(one) for one in nn.Module.modules(module))


def _with_names(module: nn.Module) -> Iterable[tuple[tuple[str, ...], nn.Module]]:
    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], nn.Module]] = [((), module)]
    while pending:
        names, one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield names, one
        children = [(n, m) for n, m in one._modules.items() if m is not None]
        pending.extend(((*names, name), child) for name, child in reversed(children))


class _Check:
    """What one guard demands, and the slow half of it."""

    def __init__(
        self,
        function: Callable[..., Any],
        device: str | int | torch.device | None,
        move: bool,
        allow: tuple[str, ...],
    ) -> None:
        self.function = function
        self.options = (device, move, allow)
        self.move = move
        self.allow = allow
        self._demanded = device
        self._device: torch.device | None = None
        names = _positional_names(function)
        self.is_method = bool(names) and names[0] in ("self", "cls")
        self.allowed = frozenset(allow)
        self.skipped = frozenset(i for i, name in enumerate(names) if name in self.allowed)
        self.is_simple = not allow and not move and device is None

    def target(self) -> torch.device | None:
        """The device that was demanded, resolved when it is first needed."""
        if self._device is None and self._demanded is not None:
            self._device = Device(self._demanded).torch
        return self._device

    def enter(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int = 2
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check the arguments of a call, or move them."""
        if self.move:
            args, kwargs = self._moved(args, kwargs)
        if not self._agree(args, kwargs):
            self._refuse(args, kwargs, sys._getframe(depth))
        return args, kwargs

    def _values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        values = [value for i, value in enumerate(args) if i not in self.skipped]
        if self.is_method and args and not isinstance(args[0], nn.Module):
            values = values[1:]
        values += [value for name, value in kwargs.items() if name not in self.allowed]
        return values

    def _agree(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Say whether all tensors are on one device; False may be wrong, and is looked into."""
        device = self.target()
        for value in self._values(args, kwargs):
            kind = type(value)
            if kind in _PLAIN or isinstance(value, Optimizer):
                continue
            if isinstance(value, nn.Module):
                found = _device_of(value)
                if found is None:
                    continue
                if isinstance(found, _Spread):
                    return True
                if device is not None and found != device:
                    return False
                device = found
                continue
            for tensor in (value,) if isinstance(value, Tensor) else _tensors_in(value):
                if device is None:
                    if tensor.dim() > 0 or tensor.device.type != "cpu":
                        device = tensor.device
                elif tensor.device != device and (tensor.dim() > 0 or tensor.device.type != "cpu"):
                    return False
        return True

    def _moved(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        from devicekit.move import to_device

        device = self.target() or self._device_of_arguments(args, kwargs)
        if device is None:
            return args, kwargs
        movable = [i for i, value in enumerate(args) if self._is_movable(i, value)]
        named = [name for name, value in kwargs.items() if self._is_movable(name, value)]
        data = ([args[i] for i in movable], [kwargs[name] for name in named])
        moved, moved_named = to_device(data, device)
        new = list(args)
        for i, value in zip(movable, moved, strict=True):
            new[i] = value
        return tuple(new), {**kwargs, **dict(zip(named, moved_named, strict=True))}

    def _is_movable(self, key: int | str, value: object) -> bool:
        if key in self.skipped or key in self.allowed or (key == 0 and self.is_method):
            return False
        return type(value) not in _PLAIN and not isinstance(value, nn.Module | Optimizer)

    def _device_of_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.device | None:
        """The device of the first module among the arguments, else of their accelerator."""
        values = self._values(args, kwargs)
        for value in values:
            if isinstance(value, nn.Module):
                found = _device_of(value)
                if isinstance(found, torch.device):
                    return found
        for value in values:
            if isinstance(value, nn.Module | Optimizer) or type(value) in _PLAIN:
                continue
            for _, tensor in find_tensors(value):
                if tensor.device.type not in ("cpu", "meta"):
                    return tensor.device
        return None

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> None:
        from devicekit.diagnosis.arguments import Argument, report_of_arguments

        named = _bind(self.function, args, kwargs)
        if named is None:  # the call itself is wrong, and Python will say how
            return
        arguments = []
        for name, value in named:
            if name in self.allowed or type(value) in _PLAIN or isinstance(value, Optimizer):
                continue
            if name in ("self", "cls") and not isinstance(value, nn.Module):
                continue
            if isinstance(value, nn.Module):
                found = _device_of_module(value)
                if isinstance(found, _Spread):
                    return
                if found is None:
                    continue
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

    def _is_allowed(self, path: str) -> bool:
        return any(path == name or path.startswith((f"{name}[", f"{name}.")) for name in self.allow)

    def where(self, args: tuple[Any, ...]) -> str:
        """The name of what is guarded, as its user knows it: `Net.forward`."""
        function = self.function
        name = getattr(function, "__qualname__", type(function).__name__)
        name = name.rpartition("<locals>.")[2]
        if self.is_method and args and "." in name:
            owner = args[0] if isinstance(args[0], type) else type(args[0])
            return f"{owner.__name__}.{name.rpartition('.')[2]}"
        return name

    def raise_explained(self, error: Exception, args: tuple[Any, ...]) -> None:
        """Raise the error that names the culprit; return if the error is about something else."""
        from devicekit.diagnosis.explanation import report_of

        if isinstance(error, DeviceMismatchError) and "\n" in str(error):
            return
        report = report_of(error, self.where(args))
        if report is not None:
            raise DeviceMismatchError(str(report)) from error


def _tensors_in(value: object) -> Iterable[Tensor]:
    return (tensor for _, tensor in find_tensors(value))


def _device_of(module: nn.Module) -> torch.device | _Spread | None:
    place = _places.get(id(module))
    if place is not None:
        try:
            return _at(module, place)
        except (AttributeError, KeyError):  # something on the way was replaced
            pass
    return _device_of_module(module)


def _at(module: nn.Module, place: _Place) -> torch.device:
    names, registry, key = place
    for name in names:
        module = module._modules[name]  # type: ignore[assignment]
    device: torch.device = getattr(module, registry)[key].device
    return device


def _positional_names(function: Callable[..., Any]) -> list[str]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return list(code.co_varnames[: code.co_argcount]) if code is not None else []


def _bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Any]] | None:
    """The arguments of a call with their names; None if the call does not fit the signature."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        named = [(f"args[{i}]", value) for i, value in enumerate(args)]
        return [*named, *kwargs.items()]
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


# The wrappers


def _wrap(function: Callable[..., Any], check: _Check) -> Callable[..., Any]:
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator(function, check)
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine(function, check)
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(function, check)
    elif check.is_simple:
        wrapper = _wrap_simply(function, check)
    else:
        wrapper = _wrap_function(function, check)
    wrapper.__devicekit_guard__ = check  # type: ignore[attr-defined]
    return wrapper


def _wrap_simply(function: Callable[..., Any], check: _Check) -> Callable[..., Any]:
    """Wrap a function without options: nearly free while all is well."""
    places = _places

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return function(*args, **kwargs)
        device = None
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) is Tensor:
                found = value.device
            elif (place := places.get(id(value))) is not None:
                names, registry, key = place
                try:
                    for name in names:
                        value = value._modules[name]
                    found = getattr(value, registry)[key].device
                except (AttributeError, KeyError):
                    break
            else:
                break
            if device is None:
                device = found
            elif found != device:
                break
        else:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                check.raise_explained(error, args)
                raise
        check.enter(args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_function(function: Callable[..., Any], check: _Check) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return function(*args, **kwargs)
        args, kwargs = check.enter(args, kwargs)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_coroutine(function: Callable[..., Any], check: _Check) -> Callable[..., Any]:
    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = check.enter(args, kwargs)
        try:
            return await function(*args, **kwargs)
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_generator(function: Callable[..., Any], check: _Check) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        args, kwargs = check.enter(args, kwargs)
        try:
            return (yield from function(*args, **kwargs))
        except Exception as error:
            check.raise_explained(error, args)
            raise

    return wrapper


def _wrap_async_generator(function: Callable[..., Any], check: _Check) -> Callable[..., Any]:
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


# The public names


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
        move: Move the arguments to that device, or to the module's, instead of refusing them.
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
        return _guard(target, options=options)

    def remove(self, module: nn.Module) -> nn.Module:
        """Undo `guard(module)`; a module that has no guard is left as it is.

        Args:
            module: The module, changed in place.

        Returns:
            The module.
        """
        own = vars(module)
        check = getattr(own.get("forward"), "__devicekit_guard__", None)
        if check is not None:
            own["forward"] = check.function
        original = vars(type(module)).get("__devicekit_original__")
        if original is not None:
            module.__class__ = original
        return module


guard = _Guard()

_Options = tuple[str | int | torch.device | None, bool, tuple[str, ...]]
_NO_OPTIONS: _Options = (None, False, ())


def _guard(target: Any, *, options: _Options) -> Any:
    if isinstance(target, staticmethod | classmethod):
        return type(target)(_guard(target.__func__, options=options))
    if isinstance(target, nn.Module):
        return _guard_module(target, options)
    if isinstance(target, type) or not callable(target):
        raise TypeError(
            f"`target` must be a function, a method or a module, but is {target!r}; in a class, "
            "write @guard above `def forward`"
        )
    return _guard_function(target, options)


def _guard_function(function: Callable[..., Any], options: _Options) -> Callable[..., Any]:
    old = getattr(function, "__devicekit_guard__", None)
    if isinstance(old, _Check):
        if options in (_NO_OPTIONS, old.options):
            return function
        function = old.function
    _check_names(function, options[2])
    return _wrap(function, _Check(function, *options))


def _check_names(function: Callable[..., Any], allow: tuple[str, ...]) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return
    for name in allow:
        root = name.partition("[")[0].partition(".")[0]
        if root not in parameters:
            raise ValueError(
                f"`allow` names {name!r}, but {getattr(function, '__qualname__', function)} has "
                f"the arguments {', '.join(parameters)}"
            )


def _guard_module(module: nn.Module, options: _Options) -> nn.Module:
    own = vars(module)
    if "forward" in own:  # put there by another library; a class could not reach past it
        own["forward"] = _guard_function(own["forward"], options)
        return module
    cls = type(module)
    original = vars(cls).get("__devicekit_original__", cls)
    forward = vars(cls)["forward"] if original is not cls else original.forward
    guarded = _guard_function(forward, options)
    if guarded is forward:
        return module
    module.__class__ = _guarded_class(original, options)
    return module


_classes: weakref.WeakKeyDictionary[type, dict[_Options, type]] = weakref.WeakKeyDictionary()


def _guarded_class(cls: type, options: _Options) -> type:
    """A class that differs from a module's in its `forward` only, and goes by the same name.

    A class, not an attribute of the instance: copies, replicas and compiled code then call
    `forward` with the right `self`.
    """
    known = _classes.setdefault(cls, {})
    if options not in known:
        members = {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__slots__": (),
            "__devicekit_original__": cls,
            "__devicekit_options__": options,
            "__reduce_ex__": _reduce,
            "forward": _guard_function(cls.forward, options),  # type: ignore[attr-defined]
        }
        known[options] = type(cls)(cls.__name__, (cls,), members)
    return known[options]


def _reduce(self: Any, protocol: int) -> Any:
    """Pickle as the original class, which can be imported, and its options."""
    cls = type(self)
    original = cls.__devicekit_original__
    _, arguments, *rest = original.__reduce_ex__(self, protocol)
    return (_rebuild, (original, cls.__devicekit_options__, arguments[1:]), *rest)


def _rebuild(cls: type, options: _Options, arguments: tuple[Any, ...]) -> Any:
    guarded = _guarded_class(cls, options)
    return guarded.__new__(guarded, *arguments)


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
    from devicekit.diagnosis.arguments import Argument, report_of_arguments

    arguments = [
        Argument(f"objects[{i}]", value, list(find_tensors(value, name=f"objects[{i}]")))
        for i, value in enumerate(objects)
    ]
    tensors = [tensor for argument in arguments for _, tensor in argument.tensors]
    if not tensors:
        raise DeviceError("`same_device` found no tensor in what it was given")
    report = report_of_arguments("same_device", arguments, None, sys._getframe(1), rename=True)
    if report is not None:
        raise DeviceMismatchError(str(report))
    counted = [one for one in tensors if one.dim() > 0 or one.device.type != "cpu"]
    return Device.of((counted or tensors)[0])
