"""How worker processes are started, and what cannot be sent to them."""

import ast
import functools
import io
import pickle
import sys
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from devicekit import compat

__all__ = ["accelerator_was_initialised", "context_for", "unpicklable"]

_PRELOAD = ["torch", "devicekit.loader"]


def context_for(given: BaseContext | None, parts: dict[str, object]) -> BaseContext:
    """The context to start worker processes in.

    Args:
        given: What the caller asked for, which is respected.
        parts: What is sent to the workers, by the name of the loader's argument.

    Returns:
        `given`, or the platform's own; where that forks and an accelerator was initialised in this
        process, a fork server with torch preloaded, if the parts can be sent to it.

    Raises:
        PicklingError: The workers do not share memory with this process, and one of the parts
            cannot be pickled; the message names the attribute.
    """
    context = given or torch.multiprocessing.get_context()
    if context.get_start_method() != "fork":
        _raise_if_unpicklable(parts, context.get_start_method())
        return _preloaded(context)
    if given is not None or not accelerator_was_initialised():
        return context
    # A forked process cannot use an accelerator that its parent has initialised. But what was
    # written for fork (a lambda, a class from a notebook, a script without a main guard) must
    # go on to work: most workers do not touch the accelerator, and those that do are noticed.
    if unpicklable(parts) is not None or not _main_can_be_imported():
        return context
    return _preloaded(torch.multiprocessing.get_context("forkserver"))


def _preloaded(context: BaseContext) -> BaseContext:
    """Have the fork server import torch once, instead of each worker after its start."""
    # Too late if the server runs already; then each worker does import torch.
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(_PRELOAD)
    return context


def accelerator_was_initialised() -> bool:
    """Whether this process has a context on an accelerator, which it cannot share by forking."""
    accelerator = compat.current_accelerator()
    if accelerator is None or accelerator.type == "mps":
        return False
    module: Any = torch.get_device_module(accelerator)
    return bool(getattr(module, "is_initialized", bool)())


def unpicklable(parts: dict[str, object]) -> str | None:
    """What in `parts` cannot be pickled, as a sentence that begins with its path; else None."""
    for name, value in parts.items():
        error = _pickling_error(value)
        if error is None:
            continue
        path, culprit, error = _narrowed(name, value, error)
        return f"`{path}` is {_kind(culprit)} ({type(error).__name__}: {error})"
    return None


def _raise_if_unpicklable(parts: dict[str, object], method: str) -> None:
    found = unpicklable(parts)
    if found is None:
        return
    raise pickle.PicklingError(
        f"worker processes started by {method!r} get a pickled copy of the dataset, but {found}.\n"
        "  fix: make it a function or a class at the top of a module, or start the workers with"
        ' `multiprocessing_context="fork"`'
    )


class _DryPickler(pickle.Pickler):
    """Goes through an object as for pickling, without its data and without side effects.

    Sending a tensor would move it to shared memory, and locks and queues can only be pickled while
    a process is being started: all of them can be sent, so they are taken as they are.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor | torch.UntypedStorage) or _is_array(obj):
            return bool, ()
        origin = type(obj).__module__.partition(".")[0]
        if origin == "multiprocessing":
            return bool, ()
        reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        if origin in ("torch", "socket") and type(obj) in reducers:
            return bool, ()
        return NotImplemented


class _Sink(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


def _pickling_error(value: object) -> Exception | None:
    try:
        _DryPickler(_Sink(), pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception as error:  # any: it comes from the value's own __reduce__ or __getstate__
        return error
    return None


def _narrowed(path: str, value: object, error: Exception) -> tuple[str, object, Exception]:
    """Follow the error down to the innermost part that has it."""
    seen: set[int] = set()
    while id(value) not in seen:
        seen.add(id(value))
        for child_path, child in _children(path, value):
            child_error = _pickling_error(child)
            if child_error is not None and id(child) not in seen:
                path, value, error = child_path, child, child_error
                break
    return path, value, error


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, functools.partial):
        yield f"{path}.func", value.func
        yield f"{path}.args", value.args
        yield f"{path}.keywords", value.keywords
    elif isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{index}]", child) for index, child in enumerate(value))
    elif not isinstance(value, type | FunctionType | ModuleType):
        owner = getattr(value, "__self__", None)  # a method: its object
        if owner is not None:
            yield f"{path}.__self__", owner
        attributes = getattr(value, "__dict__", {})
        yield from ((f"{path}.{name}", child) for name, child in attributes.items())


def _kind(value: object) -> str:
    if isinstance(value, FunctionType):
        if value.__name__ == "<lambda>":
            return "a lambda, which cannot be pickled"
        return f"the function {value.__qualname__}, which cannot be pickled"
    return f"of type {type(value).__qualname__}, which cannot be pickled"


def _is_array(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype != object


@functools.cache
def _main_can_be_imported() -> bool:
    """Whether a new process can import this one's main module without running the program again.

    A fork server's workers do so to find its classes. True for modules run by `python -m package`,
    and for scripts with the guard `if __name__ == "__main__":`; false for notebooks and `-c`.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.endswith("__main__"):
        return True  # multiprocessing does not import these again
    path = getattr(main, "__file__", None)
    if path is None:
        return False
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.If) and _is_guard(node.test) for node in tree.body)


def _is_guard(test: ast.expr) -> bool:
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    values = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    return "__name__" in names and "__main__" in values
