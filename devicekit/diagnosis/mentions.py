"""The names in an expression that a device error can be about."""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.diagnosis.frames import GENERATOR, MISSING, Call, has_type, lookup
from devicekit.diagnosis.source import has_body

__all__ = ["Mention", "mentioned", "mentions"]


_FACTS = frozenset({"device", "dtype", "is_cuda", "layout", "ndim", "requires_grad", "shape"})
_QUESTIONS = frozenset({"dim", "element_size", "numel", "size", "stride"})


class Mention(NamedTuple):
    """A name, attribute or item in an expression, and what it is bound to."""

    path: str
    node: ast.expr
    value: Any


def mentions(expression: ast.AST, call: Call) -> list[Mention]:
    """List what an expression mentions that can hold tensors, in the order of the text."""
    found: dict[str, Mention] = {}
    for mention in _visit(expression, call):
        found.setdefault(mention.path, mention)
    return list(found.values())


def mentioned(call: Call) -> list[Mention]:
    """List what the statement that a frame runs mentions."""
    if call.expression is not None:
        found = mentions(call.expression, call)
        if found:
            return found
    if call.statement is not None:
        return mentions(call.statement, call) if not has_body(call.statement) else []
    # No source, as in an interactive session: all the names that the code uses.
    names = dict.fromkeys((*call.code.co_varnames, *call.code.co_names, *call.code.co_freevars))
    nodes = [ast.Name(name, ast.Load()) for name in names if name in call.scope]
    return [mention for node in nodes for mention in mentions(node, call)]


def _visit(node: ast.AST, call: Call) -> Iterator[Mention]:
    if isinstance(node, ast.Lambda) or _asks_only(node):
        return
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        value = lookup(node, call)
        if _can_hold_tensors(value):
            yield Mention(_text(node, call), node, value)
            return
        if value is not MISSING:
            if isinstance(node, ast.Subscript):
                yield from _visit(node.slice, call)
            return
        if isinstance(node, ast.Name):
            yield from _looped_over(node.id, call)
        if isinstance(node, ast.Attribute):
            # A method or a property: of a tensor, an optimizer or a layer the object itself counts;
            # a method of the user's own module has a frame of its own.
            owner = lookup(node.value, call)
            if has_type(owner, nn.Module) and node.attr not in ("forward", "__call__"):
                return
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, call)


def _looped_over(name: str, call: Call) -> Iterator[Mention]:
    """What a comprehension runs over whose variable is gone.

    Since Python 3.12 (PEP 709) it is deleted from the function's frame before anybody can look.
    """
    for node in ast.walk(call.statement) if call.statement is not None else ():
        if not isinstance(node, ast.comprehension):
            continue
        if any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.target)):
            yield from _visit(node.iter, call)


def _asks_only(node: ast.AST) -> bool:
    """Whether an expression asks for a number of a tensor only, such as its shape."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            return True
        return isinstance(node.func, ast.Attribute) and node.func.attr in _QUESTIONS
    return isinstance(node, ast.Attribute) and node.attr in _FACTS


def _can_hold_tensors(value: Any) -> bool:
    if has_type(value, Tensor | nn.Module | Optimizer | GENERATOR):
        return True
    if value is MISSING or has_type(
        value, str | bytes | int | float | complex | type | None | torch.device | torch.dtype
    ):
        return False
    if has_type(value, list | tuple | dict | set):
        return len(value) > 0
    kinds = ("builtin_function_or_method", "function", "module", "method")
    return type(value).__name__ not in kinds


def _text(node: ast.expr, call: Call) -> str:
    """The text of a chain, with the values of variables that stand between brackets."""
    if isinstance(node, ast.Subscript):
        key = lookup(node.slice, call)
        return f"{_text(node.value, call)}[{key!r}]"
    if isinstance(node, ast.Attribute):
        return f"{_text(node.value, call)}.{node.attr}"
    return ast.unparse(node)
