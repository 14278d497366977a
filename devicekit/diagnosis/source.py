"""Edits of one line of source, as a reader would type them."""

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Fix", "binding_of", "insert", "line_of", "stores_of"]


@dataclass(frozen=True)
class Fix:
    """A line of code that mends a mistake, and where to type it.

    Attributes:
        code: The line.
        place: Such as "before line 12" or "instead of line 8 of model.py"; empty where the line
            stands for itself.
    """

    code: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.code}  # {self.place}" if self.place else self.code


def line_of(filename: str, number: int) -> str:
    return linecache.getline(filename, number).rstrip("\r\n")


def insert(filename: str, node: ast.expr, text: str, statement: ast.stmt | None = None) -> str:
    """The source line on which an expression ends, with a text inserted after it."""
    return _edit(filename, node.end_lineno or 0, node.end_col_offset or 0, text, statement)


def add_keyword(filename: str, call: ast.Call, text: str, statement: ast.stmt | None = None) -> str:
    """The source line on which a call ends, with a keyword argument added to it."""
    number, column = call.end_lineno or 0, (call.end_col_offset or 0) - 1
    before = _segment(filename, call).rstrip()[:-1].rstrip()
    joint = "" if before.endswith(("(", ",")) else ", "
    if before.endswith(",") and line_of(filename, number).encode()[:column].rstrip().endswith(b","):
        joint = " "
    return _edit(filename, number, column, joint + text, statement)


def _edit(filename: str, number: int, column: int, text: str, statement: ast.stmt | None) -> str:
    line = line_of(filename, number).encode()
    if statement is not None and statement.end_lineno == number and not _has_body(statement):
        line = line[: statement.end_col_offset]  # a comment after it is of no use here
    return (line[:column] + text.encode() + line[column:]).decode().strip()


def _has_body(statement: ast.stmt) -> bool:
    return hasattr(statement, "body")


def _segment(filename: str, node: ast.expr) -> str:
    first, last = node.lineno, node.end_lineno or node.lineno
    lines = [line_of(filename, number).encode() for number in range(first, last + 1)]
    if not lines:
        return ""
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return b"\n".join(lines).decode()


def lines_of(statement: ast.stmt) -> str:
    """The lines that a statement takes, in words."""
    last = statement.end_lineno or statement.lineno
    if last == statement.lineno:
        return f"line {statement.lineno}"
    return f"lines {statement.lineno}-{last}"


def statements_in(function: ast.AST) -> Iterator[ast.AST]:
    """The statements, loops and named expressions of a function, not of the functions inside it."""
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        yield node
        pending.extend(ast.iter_child_nodes(node))


def binding_of(function: ast.AST, name: str, before: int) -> ast.AST | None:
    """What last bound a name before a line: an assignment, a loop, a `with`, a walrus.

    Where every binding comes later in the text (in a loop, say), the last of them.
    """
    found = [node for node in statements_in(function) if _binds(node, name)]
    if isinstance(function, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        found += [one for one in function.generators if _names(one.target, name)]
    earlier = [node for node in found if getattr(node, "lineno", 0) <= before]
    candidates = earlier or found
    return max(candidates, key=lambda node: getattr(node, "lineno", 0)) if candidates else None


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(_names(target, name) for target in node.targets)
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return node.value is not None and _names(node.target, name)
    if isinstance(node, ast.For | ast.AsyncFor):
        return _names(node.target, name)
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(one.optional_vars and _names(one.optional_vars, name) for one in node.items)
    return False


def _names(target: ast.AST, name: str) -> bool:
    if isinstance(target, ast.Name):
        return target.id == name
    if isinstance(target, ast.Tuple | ast.List):
        return any(_names(one, name) for one in target.elts)
    return isinstance(target, ast.Starred) and _names(target.value, name)


def stores_of(function: ast.AST, attribute: str) -> list[ast.Assign | ast.AnnAssign]:
    """The assignments to `self.<attribute>` in a method, whatever `self` is called there."""
    arguments = getattr(function, "args", None)
    if arguments is None or not (arguments.posonlyargs or arguments.args):
        return []
    me = (arguments.posonlyargs + arguments.args)[0].arg
    found: list[ast.Assign | ast.AnnAssign] = []
    for node in statements_in(function):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and target.attr == attribute
                and isinstance(target.value, ast.Name)
                and target.value.id == me
                and isinstance(node, ast.Assign | ast.AnnAssign)
            ):
                found.append(node)
    return sorted(found, key=lambda one: one.lineno)
