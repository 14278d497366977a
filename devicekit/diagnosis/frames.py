"""Reading frames: which statement runs, and what the names in it are bound to.

Nothing here runs user code. Names are looked up in the frames' dictionaries, attributes in the
dictionaries of the objects (never through a property or `__getattr__`), items only in the built-in
containers; the source is parsed, not compiled.
"""

import ast
import builtins
import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, MemberDescriptorType, TracebackType
from typing import Any

import torch
from torch import nn

__all__ = [
    "GENERATOR",
    "MISSING",
    "Call",
    "calls_of",
    "function_at",
    "has_type",
    "instance_dict",
    "is_library",
    "is_peer",
    "lookup",
    "member",
    "parse",
]

MISSING: Any = object()
GENERATOR = type(torch.default_generator)  # `torch.Generator` may be replaced by a simulation

_STDLIB = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
)
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
_SELF = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep
_MANY_FRAMES = 60
# In Python 3.11 two threads that parse at once disturb each other: "SystemError: AST constructor
# recursion depth mismatch" (python/cpython#106905).
_parsing = threading.Lock()
_MANY_LIBRARY_FRAMES = 300


@dataclass
class Call:
    """One frame: what it runs now, and what its names are bound to.

    The scope is a copy; drop the calls and nothing of the frames is held.
    """

    code: CodeType
    line: int
    scope: Mapping[str, Any]
    globals: Mapping[str, Any]
    tree: ast.Module | None
    statement: ast.stmt | None
    expression: ast.expr | None

    @property
    def file(self) -> str:
        """The file that the code came from."""
        return self.code.co_filename

    @property
    def is_peer(self) -> bool:
        """Whether the code belongs to an installed library, where the user types nothing."""
        return is_peer(self.code.co_filename)

    @property
    def first_line(self) -> int:
        """The line on which the running statement begins."""
        return self.statement.lineno if self.statement is not None else self.line

    @property
    def name(self) -> str:
        """The function's name as its author would say it: `Net.forward`, not the whole path."""
        return self.code.co_qualname.rpartition("<locals>.")[2]

    @property
    def function(self) -> ast.AST | None:
        """The part of the tree that this frame runs."""
        if self.tree is None or self.code.co_name == "<module>":
            return self.tree
        return function_at(self.tree, self.code)

    def arguments(self) -> tuple[str, ...]:
        """The names of the function's arguments."""
        code = self.code
        count = code.co_argcount + code.co_kwonlyargcount
        count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
        return code.co_varnames[:count]

    def bound(self, name: str) -> Any:
        """The value of a name, or `MISSING`."""
        for space in (self.scope, self.globals, vars(builtins)):
            if name in space:
                return space[name]
        return MISSING


def has_type(value: Any, kinds: Any) -> bool:
    """`isinstance`, by the type alone: it asks the object nothing, not even for its class."""
    return issubclass(type(value), kinds)


def is_library(filename: str) -> bool:
    """Say whether a file belongs to torch, to Python or to this library: not to the user."""
    if filename.startswith("<"):
        return filename.startswith(("<frozen", "<eval_with_key>", "<attrs", "<devicekit"))
    path = os.path.realpath(filename)
    if path.startswith((_TORCH, _SELF)):
        return True
    return path.startswith(_STDLIB) and "site-packages" not in path


def is_peer(filename: str) -> bool:
    """Say whether a file belongs to an installed library other than torch."""
    parts = filename.replace("\\", "/").split("/")
    return "site-packages" in parts or "dist-packages" in parts


def calls_of(
    traceback: TracebackType | None,
    frame: FrameType | None = None,
    *,
    cause: TracebackType | None = None,
) -> tuple[list[Call], list[Call]]:
    """Read the frames of a traceback and of its callers, innermost first.

    Args:
        traceback: Where an error passed, or None.
        frame: The innermost frame to read when there is no traceback.
        cause: Where the error passed that this one was raised from, to go on there.

    Returns:
        The frames of the user, and the library's frames inside the innermost of those.
    """
    inner: list[tuple[FrameType, int, int]] = []
    entry = traceback
    while entry is not None:
        if cause is not None and entry.tb_frame is cause.tb_frame:
            break  # here the first error was caught and the second raised
        inner.append((entry.tb_frame, entry.tb_lasti, entry.tb_lineno))
        entry = entry.tb_next
    if cause is not None and entry is None:
        inner.clear()  # the frame that caught it has not raised: its callers are known from it
    entry = cause
    while entry is not None:
        inner.append((entry.tb_frame, entry.tb_lasti, entry.tb_lineno))
        entry = entry.tb_next
    outermost = inner[0][0].f_back if inner else frame
    inner.reverse()
    users: list[Call] = []
    library: list[Call] = []
    trees: dict[str, ast.Module | None] = {}
    for one, lasti, line in (*inner, *_outer(outermost)):
        if not is_library(one.f_code.co_filename):
            users.append(_read(one, lasti, line, trees))
        elif not users and len(library) < _MANY_LIBRARY_FRAMES:
            library.append(_read(one, lasti, line, None))
        if len(users) == _MANY_FRAMES:
            break
    return users, library


def _outer(frame: FrameType | None) -> Iterator[tuple[FrameType, int, int]]:
    while frame is not None:
        yield frame, frame.f_lasti, frame.f_lineno
        frame = frame.f_back


def _read(
    frame: FrameType, lasti: int, line: int, trees: dict[str, ast.Module | None] | None
) -> Call:
    code = frame.f_code
    tree = None
    statement, expression = None, None
    if trees is not None:
        if code.co_filename not in trees:
            trees[code.co_filename] = parse(code.co_filename, frame.f_globals)
        tree = trees[code.co_filename]
        if tree is not None:
            statement, expression = _running(tree, code, lasti)
    return Call(code, line, _locals(frame), frame.f_globals, tree, statement, expression)


def _locals(frame: FrameType) -> dict[str, Any]:
    snapshot = frame.f_locals
    scope = dict(snapshot)
    # Before Python 3.13 (PEP 667) a function's f_locals is a dictionary that the frame keeps: in a
    # frame that goes on running it would hold tensors that the function has deleted since.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & 0x01:
        snapshot.clear()
    return scope


def parse(filename: str, module_globals: Mapping[str, Any] | None = None) -> ast.Module | None:
    """Parse a source file; None where there is none, or it is not Python."""
    lines = linecache.getlines(filename, dict(module_globals) if module_globals else None)
    if not lines:
        return None
    try:
        with _parsing:
            return ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # a template, or a file that was changed meanwhile
        return None
    except (SystemError, RecursionError, MemoryError):  # a thread that parses without the lock, or
        return None  # source that nests too deep: then the report goes without the statement


def _running(
    tree: ast.Module, code: CodeType, lasti: int
) -> tuple[ast.stmt | None, ast.expr | None]:
    positions = list(code.co_positions())
    index = lasti // 2
    if not 0 <= index < len(positions):
        return None, None
    line, end_line, column, end_column = positions[index]
    if line is None or end_line is None or column is None or end_column is None:
        return None, None
    start, end = (line, column), (end_line, end_column)
    statement: ast.stmt | None = None
    expression: ast.expr | None = None
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.expr | ast.stmt):
            if not _covers(node, start, end):
                continue
            if isinstance(node, ast.stmt):
                statement, expression = node, None
            elif not isinstance(node, ast.Starred):
                expression = node
        nodes.extend(ast.iter_child_nodes(node))
    return statement, expression


def _covers(node: ast.expr | ast.stmt, start: tuple[int, int], end: tuple[int, int]) -> bool:
    begins = (node.lineno, node.col_offset)
    decorators = getattr(node, "decorator_list", None)
    if decorators:
        begins = (decorators[0].lineno, 0)
    ends = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return begins <= start and end <= ends


def function_at(tree: ast.AST, code: CodeType) -> ast.AST | None:
    """Find the function, lambda or comprehension that a code object was compiled from."""
    first = code.co_firstlineno
    found: ast.AST | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            starts = [node.lineno, *(one.lineno for one in node.decorator_list)]
            if node.name == code.co_name and min(starts) <= first <= max(starts):
                return node
        elif code.co_name == "<lambda>" and isinstance(node, ast.Lambda):
            if node.lineno == first:
                found = node
        elif (
            code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
            and isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
            and node.lineno == first
        ):
            found = node
    return found


def lookup(node: ast.AST, call: Call) -> Any:
    """The value of a chain of names, attributes and items in a frame, or `MISSING`."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return call.bound(node.id)
    if isinstance(node, ast.NamedExpr):
        return lookup(node.target, call)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = lookup(node.operand, call)
        return -value if type(value) is int else MISSING
    if isinstance(node, ast.Attribute):
        owner = lookup(node.value, call)
        return MISSING if owner is MISSING else member(owner, node.attr)
    if isinstance(node, ast.Subscript):
        holder = lookup(node.value, call)
        key = lookup(node.slice, call)
        return MISSING if holder is MISSING or key is MISSING else _item(holder, key)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
        names = call.arguments()
        return call.bound(names[0]) if names else MISSING
    return MISSING


def member(owner: Any, name: str) -> Any:
    """An attribute of an object, read from dictionaries and slots only, or `MISSING`."""
    own = instance_dict(owner)
    if has_type(owner, nn.Module):
        for registry in ("_parameters", "_buffers", "_modules"):
            entries = own.get(registry)
            if entries and name in entries:
                return entries[name]
    if name in own:
        return own[name]
    for base in type.__getattribute__(owner if has_type(owner, type) else type(owner), "__mro__"):
        value = type.__getattribute__(base, "__dict__").get(name, MISSING)
        if value is MISSING:
            continue
        if isinstance(value, MemberDescriptorType):  # a slot
            try:
                return value.__get__(owner, type(owner))
            except AttributeError:
                return MISSING
        return MISSING if hasattr(type(value), "__get__") else value
    return MISSING


def instance_dict(owner: Any) -> dict[str, Any]:
    """The dictionary of an object, past any `__getattribute__` of its class; empty without one."""
    try:
        own = object.__getattribute__(owner, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return own if isinstance(own, dict) else dict(own)


def _is_plain_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_is_plain_key, key))
    return type(key) in (bool, bytes, float, int, str, type(None))


def _item(holder: Any, key: Any) -> Any:
    if has_type(holder, nn.Module):
        # ModuleList, ModuleDict, Sequential, ParameterList: children under the text of the key.
        if has_type(holder, nn.ModuleList | nn.Sequential | nn.ParameterList):
            if type(key) is not int:
                return MISSING
            own = instance_dict(holder)
            if key < 0:
                key += len(own["_modules"]) + len(own["_parameters"])
        return member(holder, str(key)) if has_type(key, str | int) else MISSING
    if not _is_plain_key(key):
        return MISSING
    try:
        if has_type(holder, dict):
            return dict.get(holder, key, MISSING)
        if has_type(holder, list):
            return list.__getitem__(holder, key) if type(key) is int else MISSING
        if has_type(holder, tuple):
            return tuple.__getitem__(holder, key) if type(key) is int else MISSING
    except IndexError:
        return MISSING
    data = instance_dict(holder).get("data")  # UserDict and its kin: BatchEncoding, Batch
    return dict.get(data, key, MISSING) if isinstance(data, dict) and type(key) is str else MISSING
