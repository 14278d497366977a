"""Failures inside compiled code: the frames are gone, the text of the error says where they were.

Dynamo runs the user's code by itself and names the lines in its message ("from user code:"). From
the function that was compiled and what it was given, the names on those lines are found again.
"""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from devicekit.diagnosis.frames import (
    MISSING,
    Call,
    function_at,
    has_type,
    is_library,
    lookup,
    parse,
)
from devicekit.diagnosis.making import factory_in
from devicekit.diagnosis.source import binding_of, has_body
from devicekit.diagnosis.tensors import MADE_UP

__all__ = ["traced_calls"]

_ENTRY = re.compile(r'^ *File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)', re.M)


def traced_calls(text: str, library: list[Call]) -> list[Call]:
    """The user's frames that Dynamo ran, innermost first; empty if the error is none of Dynamo's.

    Args:
        text: The error's text.
        library: The library's frames in the traceback.
    """
    _, found, block = text.partition("from user code:")
    if not found:
        return []
    entries = [
        (one["file"], int(one["line"]), one["name"])
        for one in _ENTRY.finditer(block)
        if not is_library(one["file"])
    ]
    function, args, kwargs = _compiled_function(library)
    calls: list[Call] = []
    for file, line, name in entries:
        if function is None or function.__code__.co_filename != file:
            break
        if function.__name__ != name:
            break
        call = _call(function, line, _bind(function, args, kwargs))
        calls.insert(0, call)
        function, args, kwargs = _called_next(call)
    return calls if len(calls) == len(entries) else []


def _compiled_function(
    library: list[Call],
) -> tuple[FunctionType | None, tuple[Any, ...], dict[str, Any]]:
    """What was compiled, and the arguments that it was called with."""
    for call in reversed(library):
        if call.code.co_name != "compile_wrapper" or "fn" not in call.scope:
            continue
        args = call.scope.get("args", ())
        kwargs = call.scope.get("kwargs", {})
        function = call.scope["fn"]
        if isinstance(function, MethodType) and isinstance(function.__self__, nn.Module):
            return _python(type(function.__self__).forward), (function.__self__, *args), kwargs
        return _python(function), args, kwargs
    return None, (), {}


def _python(function: Any) -> FunctionType | None:
    function = inspect.unwrap(function) if callable(function) else function
    return function if isinstance(function, FunctionType) else None


def _bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except TypeError:  # not what was called after all
        return {}
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if value is not MISSING}


def _call(function: FunctionType, line: int, scope: dict[str, Any]) -> Call:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    tree = parse(code.co_filename, function.__globals__)
    statement = _statement(tree, line)
    call = Call(code, line, scope, function.__globals__, tree, statement, None)
    if statement is not None and not has_body(statement):
        call.expression = getattr(statement, "value", None)
    _make_up(call)
    return call


def _statement(tree: ast.AST | None, line: int) -> ast.stmt | None:
    found = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
    return found


def _make_up(call: Call) -> None:
    """Stand in for the variables that the function itself has made on the CPU."""
    function = function_at(call.tree, call.code) if call.tree is not None else None
    if function is None or call.statement is None:
        return
    for node in ast.walk(call.statement):
        if not isinstance(node, ast.Name) or lookup(node, call) is not MISSING:
            continue
        binding = binding_of(function, node.id, call.first_line)
        if isinstance(binding, ast.Assign) and factory_in(binding.value, call) is not None:
            stand_in = torch.empty(1)
            setattr(stand_in, MADE_UP, True)
            scope = dict(call.scope)
            scope[node.id] = stand_in
            call.scope = scope


def _called_next(call: Call) -> tuple[FunctionType | None, tuple[Any, ...], dict[str, Any]]:
    """The function of the user that a statement calls, and what is known of its arguments."""
    for node in ast.walk(call.statement) if call.statement is not None else ():
        if not isinstance(node, ast.Call):
            continue
        args = tuple(lookup(one, call) for one in node.args)
        kwargs = {one.arg: lookup(one.value, call) for one in node.keywords if one.arg}
        value = lookup(node.func, call)
        if has_type(value, nn.Module):
            return _python(type(value).forward), (value, *args), kwargs
        if has_type(value, FunctionType):
            return _python(value), args, kwargs
        if value is MISSING and isinstance(node.func, ast.Attribute):  # a method of a module
            owner = lookup(node.func.value, call)
            method = inspect.getattr_static(type(owner), node.func.attr, None)
            if isinstance(owner, nn.Module) and isinstance(method, FunctionType):
                return _python(method), (owner, *args), kwargs
    return None, (), {}
