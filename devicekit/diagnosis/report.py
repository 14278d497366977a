"""The text of a device error, in its fixed frame."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from devicekit.diagnosis.frames import Call
from devicekit.diagnosis.source import Fix, has_body, line_of, without_head

__all__ = ["Report", "Row", "Site", "mismatch", "site_of"]

_NAME_WIDTH = 17
_MANY_ROWS = 12


@dataclass(frozen=True)
class Row:
    """One line of the table: where a thing is, what it is called, what it is."""

    device: str
    name: str
    what: str


@dataclass(frozen=True)
class Site:
    """The statement that failed."""

    file: str
    line: int
    function: str
    source: str

    def __str__(self) -> str:
        head = f'  File "{self.file}", line {self.line}, in {self.function}'
        return f"{head}\n    {self.source}" if self.source else head


def site_of(call: Call) -> Site:
    """The statement that a frame runs."""
    statement = call.statement
    line = call.line
    source = ""
    if statement is not None and not has_body(statement):
        line = statement.lineno
        source = without_head(line_of(call.file, line), statement)
        if (statement.end_lineno or line) > line:
            source = ast.unparse(statement).partition("\n")[0]
    elif line:
        source = line_of(call.file, line).strip()
    return Site(call.file, line, call.name, source)


@dataclass(frozen=True)
class Report:
    """What is known of a device error; nothing but text.

    Attributes:
        where: The function that was guarded, or in which the statement stands.
        problem: One line on what is wrong.
        site: The statement that failed, or None for a check of arguments.
        rows: The things that met, those on the right device first.
        fixes: Lines of code to type, the best first.
    """

    where: str
    problem: str
    site: Site | None
    rows: Sequence[Row]
    fixes: Sequence[Fix]

    def __str__(self) -> str:
        blocks = [f"{self.where}: {self.problem}" if self.where else self.problem]
        if self.site is not None:
            blocks.append(str(self.site))
        if self.rows:
            blocks.append("\n".join(_table(self.rows)))
        if self.fixes:
            blocks.append("\n".join(_lines(self.fixes)))
        return "\n\n".join(blocks)


def _table(rows: Sequence[Row]) -> Iterable[str]:
    shown = rows[:_MANY_ROWS]
    devices = max(len(row.device) for row in shown)
    names = max(_NAME_WIDTH, *(len(row.name) for row in shown))
    for row in shown:
        yield f"  {row.device:<{devices}}  {row.name:<{names}}  {row.what}".rstrip()
    if len(rows) > len(shown):
        yield f"  and {len(rows) - len(shown)} more"


def _lines(fixes: Sequence[Fix]) -> Iterable[str]:
    for number, fix in enumerate(fixes):
        yield f"  {'fix:' if number == 0 else '    '} {fix}"


def mismatch(devices: Sequence[torch.device], right: torch.device | None = None) -> str:
    """The sentence that torch uses, with all the devices that were found, the right one first."""
    names = list(dict.fromkeys(map(str, devices if right is None else [right, *devices])))
    found = ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)
    return f"expected all tensors to be on the same device, but found {found}"
