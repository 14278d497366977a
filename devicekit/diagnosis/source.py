"""Edits of one line of source, as a reader would type them."""

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "Fix",
    "add_keyword",
    "binding_of",
    "cut",
    "has_body",
    "insert",
    "insert_all",
    "line_of",
    "lines_of",
    "stores_of",
    "without_head",
    "wrap",
]


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
    """One line of a file, without its end."""
    return linecache.getline(filename, number).rstrip("\r\n")


def insert(filename: str, node: ast.expr, text: str, statement: ast.stmt | None = None) -> str:
    """The source line on which an expression ends, with a text inserted after it."""
    return _edit(filename, node.end_lineno or 0, node.end_col_offset or 0, text, statement)


def wrap(filename: str, node: ast.expr, before: str, after: str, statement: ast.stmt | None) -> str:
    """The source line of an expression on one line, with texts put around it."""
    line = _edit(filename, node.end_lineno or 0, node.end_col_offset or 0, after, statement)
    column = node.col_offset - _start(line_of(filename, node.lineno).encode(), node, statement)
    return (line.encode()[:column] + before.encode() + line.encode()[column:]).decode()


def add_keyword(filename: str, call: ast.Call, text: str, statement: ast.stmt | None = None) -> str:
    """The source line on which a call ends, with a keyword argument added to it."""
    return insert_all(filename, [(call, text, True)], statement)


def insert_all(
    filename: str, edits: list[tuple[ast.Call, str, bool]], statement: ast.stmt | None
) -> str:
    """The source line on which some calls end, with a text added to each.

    Args:
        filename: The file.
        edits: The calls that end on the line; the text; whether it is a keyword argument, or
            stands behind the call.
        statement: The statement that the line belongs to.
    """
    number = edits[0][0].end_lineno or 0
    inserts: list[tuple[int, str]] = []
    for node, text, is_keyword in edits:
        column = node.end_col_offset or 0
        if is_keyword:
            inserts.append((column - 1, _joint(filename, node) + text))
        else:
            inserts.append((column, text))
    (last, text), *earlier = sorted(inserts, reverse=True)
    line = _edit(filename, number, last, text, statement).encode()
    dropped = _start(line_of(filename, number).encode(), edits[0][0], statement)
    for column, text in earlier:
        at = column - dropped
        line = line[:at] + text.encode() + line[at:]
    return line.decode()


def _joint(filename: str, call: ast.Call) -> str:
    """What stands between the last argument of a call and one more."""
    before = _segment(filename, call).rstrip()[:-1].rstrip()
    if not before.endswith(("(", ",")):
        return ", "
    line = line_of(filename, call.end_lineno or 0).encode()[: (call.end_col_offset or 0) - 1]
    return " " if line.endswith(b",") else ""


def cut(filename: str, kept: ast.expr, node: ast.expr, statement: ast.stmt | None) -> str:
    """The source line of an expression, of which only the part in front is kept."""
    line = _edit(filename, node.end_lineno or 0, node.end_col_offset or 0, "", statement).encode()
    dropped = _start(line_of(filename, node.end_lineno or 0).encode(), node, statement)
    start, end = (kept.end_col_offset or 0) - dropped, (node.end_col_offset or 0) - dropped
    return (line[:start] + line[end:]).decode()


def _edit(filename: str, number: int, column: int, text: str, statement: ast.stmt | None) -> str:
    line = line_of(filename, number).encode()
    if statement is not None and statement.end_lineno == number and not has_body(statement):
        line = line[: statement.end_col_offset]  # a comment after it is of no use here
    start = 0
    if statement is not None and statement.lineno == number:
        start = _head(line, statement)
    return (line[start:column] + text.encode() + line[column:]).decode().strip()


def without_head(line: str, statement: ast.stmt) -> str:
    """The first line of a statement, without a `try:` or `if ...:` in front of it."""
    return line.encode()[_head(line.encode(), statement) :].decode().strip()


def _head(line: bytes, statement: ast.stmt) -> int:
    """Where a statement begins that stands behind the head of a block; else 0."""
    before = line[: statement.col_offset].rstrip()
    return statement.col_offset if before.endswith(b":") else 0


def _start(line: bytes, node: ast.expr, statement: ast.stmt | None) -> int:
    """How many bytes `_edit` drops at the front of a line."""
    head = (
        _head(line, statement) if statement is not None and statement.lineno == node.lineno else 0
    )
    return head or len(line) - len(line.lstrip())


def has_body(statement: ast.stmt) -> bool:
    """Whether it is a block with other statements in it, such as `if` or `for`."""
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


_Block = tuple[ast.AST, str, list[ast.stmt]]


def binding_of(function: ast.AST, name: str, before: int) -> ast.AST | None:
    """What last bound a name before a line: an assignment, a loop, a `with`, a walrus.

    Leaves out what cannot have run before the line: the other branch of an `if`, a block that ends
    in `return`. Where every binding comes later in the text, the last one in the same loop.
    """
    if isinstance(function, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        return next((one for one in function.generators if _names(one.target, name)), None)
    earlier: list[ast.AST] = []
    later: list[ast.AST] = []
    for node, blocks in _statements(function, ()):
        if not _binds(node, name):
            continue
        line = getattr(node, "lineno", 0)
        if line < before or isinstance(node, ast.NamedExpr):
            if not any(_is_closed(block, before) for block in blocks):
                earlier.append(node)
        elif any(_is_loop_around(block, before) for block in blocks):
            later.append(node)
    found = earlier or later
    return max(found, key=lambda node: getattr(node, "lineno", 0)) if found else None


def _statements(
    node: ast.AST, blocks: tuple[_Block, ...]
) -> Iterator[tuple[ast.AST, tuple[_Block, ...]]]:
    """The nodes inside a node that can bind names, each with the blocks it stands in."""
    for field, value in ast.iter_fields(node):
        if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            inner = (*blocks, (node, field, value))
        else:
            inner = blocks
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
            ):
                continue
            yield child, inner
            yield from _statements(child, inner)


def _is_closed(block: _Block, line: int) -> bool:
    """Whether what a block did cannot be seen on a line behind it."""
    node, field, body = block
    if body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno):
        return False
    if isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    other = getattr(node, "orelse" if field == "body" else "body", None)
    if not isinstance(node, ast.If) or not other:
        return False
    return bool(other[0].lineno <= line <= (other[-1].end_lineno or other[-1].lineno))


def _is_loop_around(block: _Block, line: int) -> bool:
    node, _, body = block
    if not isinstance(node, ast.For | ast.AsyncFor | ast.While):
        return False
    return body[0].lineno <= line <= (body[-1].end_lineno or body[-1].lineno)


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Assign):
        return any(_names(target, name) for target in node.targets)
    if isinstance(node, ast.AnnAssign | ast.NamedExpr):
        return node.value is not None and _names(node.target, name)
    # A comprehension has no frame of its own since Python 3.12 (PEP 709).
    if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
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
    for node, _ in _statements(function, ()):
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
