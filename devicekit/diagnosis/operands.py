"""Operands without a name: tensors and layers that a statement makes, and their devices."""

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from devicekit.diagnosis.frames import MISSING, Call, has_type, lookup
from devicekit.diagnosis.making import is_factory
from devicekit.diagnosis.search import Search
from devicekit.diagnosis.source import Fix, insert_all

__all__ = ["Made", "made_in", "mended"]


class Made(NamedTuple):
    """A part of a statement that makes a tensor or a layer.

    Attributes:
        node: The call.
        device: Where the result is.
        what: How that was decided, in words.
        takes_device: Whether the call has no `device=`, and takes one.
    """

    node: ast.Call
    device: torch.device
    what: str
    takes_device: bool


def made_in(call: Call, said: Sequence[str]) -> list[Made]:
    """List what the failed expression of a frame makes on devices that its text tells.

    Args:
        call: The frame.
        said: The devices that the error names, to complete one without an index.
    """
    return list(_visit(call.expression, call, said)) if call.expression is not None else []


def _visit(node: ast.AST, call: Call, said: Sequence[str]) -> Iterator[Made]:
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Call):
        made = _made(node, call, said)
        if made is not None:
            yield made
            return
    for child in ast.iter_child_nodes(node):
        yield from _visit(child, call, said)


def _made(node: ast.Call, call: Call, said: Sequence[str]) -> Made | None:
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        if node.func.attr in ("cpu", "cuda") and not node.args:
            return Made(node, _complete(node.func.attr, said), "moved here", False)
        if node.func.attr == "to" and node.args:
            device = _device(node.args[0], call, said)
            return None if device is None else Made(node, device, "moved here", False)
    if not is_factory(node, call) and not _is_layer(node, call):
        return None
    if any(keyword.arg is None for keyword in node.keywords):
        return None
    given = next((one.value for one in node.keywords if one.arg == "device"), None)
    if given is None:
        device = torch.get_default_device()
        return Made(node, _complete(str(device), said), "made here without device=", True)
    device = _device(given, call, said)
    return None if device is None else Made(node, device, "made here", False)


def _is_layer(node: ast.Call, call: Call) -> bool:
    """Whether a call makes a layer of torch that has no others inside, which takes `device=`."""
    value = lookup(node.func, call)
    if not has_type(value, type) or not issubclass(value, nn.Module):
        return False
    if not value.__module__.startswith("torch.nn."):
        return False
    code = getattr(value.__init__, "__code__", None)
    return (
        code is not None
        and "device" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    )


def _device(node: ast.expr, call: Call, said: Sequence[str]) -> torch.device | None:
    value = lookup(node, call)
    if value is MISSING or not has_type(value, str | torch.device):
        return None
    try:
        return _complete(str(value), said)
    except RuntimeError:  # no device: `.to()` of something else
        return None


def _complete(text: str, said: Sequence[str]) -> torch.device:
    """A device with its index: that which the error has, else the first."""
    device = torch.device(text)
    if device.index is not None or device.type in ("cpu", "meta"):
        return device
    same = (one for one in map(torch.device, said) if one.type == device.type)
    return next((one for one in same if one.index is not None), torch.device(device.type, 0))


def mended(off: Sequence[Made], search: Search) -> list[Fix]:
    """The lines of a statement with the right device for what it makes, one for each line."""
    call = search.calls[0]
    fixes: list[Fix] = []
    for number in dict.fromkeys(one.node.end_lineno or 0 for one in off):
        here = [one for one in off if one.node.end_lineno == number]
        device = search.device_code(0, call.line)
        edits = [
            (
                one.node,
                f"device={device}" if one.takes_device else search.move(0, call.line),
                one.takes_device,
            )
            for one in here
        ]
        line = insert_all(call.file, edits, call.statement)
        fixes.append(Fix(line, search.place("instead of", number, call.file)))
    return fixes
