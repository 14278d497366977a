"""What a search for the origin of a tensor carries along: frames, the right device, and words."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from devicekit.diagnosis.frames import MISSING, Call, has_type
from devicekit.diagnosis.mentions import mentions
from devicekit.diagnosis.source import Fix, binding_of, lines_of
from devicekit.diagnosis.tensors import tensors_of

__all__ = ["Origin", "Search", "holds", "short"]

_MANY_CHARACTERS = 60


@dataclass(frozen=True)
class Origin:
    """What a tensor is, and how to mend that it is off.

    Attributes:
        what: In words, to stand behind its shape; empty for a plain variable.
        fix: The line to type, or None where no single line mends it.
        name: Where it is a variable that may be assigned in the frame of the statement, its name.
        is_batch: Whether a data loader yielded it.
    """

    what: str
    fix: Fix | None
    name: str | None = None
    is_batch: bool = False


@dataclass
class Search:
    """The frames to search, innermost first, and the device that the tensor should be on.

    Attributes:
        calls: The user's frames.
        target: The right device.
        shown: The file that the report shows anyway, so that a fix in it needs no file name.
        follow: Finds the origin of what an expression of a frame is bound to.
        steps: How many expressions were followed, to stop somewhere.
    """

    calls: list[Call]
    target: torch.device
    shown: str
    follow: Callable[[Search, Any, ast.AST, int], Origin | None]
    steps: int = field(default=0)

    @property
    def quoted(self) -> str:
        """The right device as Python text."""
        return f'"{self.target}"'

    def before(self, at: int) -> str:
        """The place in front of the statement that a frame runs."""
        call = self.calls[at]
        line = call.statement.lineno if call.statement is not None else call.line
        return self.place("before", line, call.file)

    def instead(self, filename: str, statement: ast.stmt) -> str:
        """The place of a whole statement."""
        return f"instead of {lines_of(statement)}{self._file(filename)}"

    def place(self, word: str, line: int, filename: str) -> str:
        """A place in words: `before line 12`, `instead of line 8 of model.py`."""
        return f"{word} line {line}{self._file(filename)}"

    def _file(self, filename: str) -> str:
        if filename == self.shown:
            return ""
        return f" of {filename.replace(chr(92), '/').rpartition('/')[2]}"

    def outermost(self, value: Any, at: int, path: str) -> tuple[str, str]:
        """The outermost statement that uses a module which holds a value, and that module."""
        for index in range(len(self.calls) - 1, at - 1, -1):
            call = self.calls[index]
            if call.expression is None or (call.is_peer and not self.calls[at].is_peer):
                continue
            for mention in mentions(call.expression, call):
                if has_type(mention.value, nn.Module) and holds(mention.value, value):
                    return self.before(index), mention.path
        return self.before(at), path

    def move(self, at: int, line: int) -> str:
        """The method call that moves a tensor to the right device, to be typed on a line."""
        return ".cpu()" if self.target.type == "cpu" else f".to({self.device_code(at, line)})"

    def device_code(self, at: int, line: int) -> str:
        """The right device, in words that stay right on another machine where possible."""
        call = self.calls[at]
        function = call.function
        for name in call.arguments():
            value = call.scope.get(name, MISSING)
            if function is not None and binding_of(function, name, line) is not None:
                continue
            if has_type(value, Tensor) and value.device == self.target and name != "self":
                return f"{name}.device"
            if _is_device(value, self.target):
                return name
        for name, value in {**call.globals, **call.scope}.items():
            if _is_device(value, self.target) and _is_bound_before(call, name, line):
                return name
        return self.quoted


def _is_device(value: Any, target: torch.device) -> bool:
    if not has_type(value, str | torch.device):
        return False
    return str(value) == str(target)


def _is_bound_before(call: Call, name: str, line: int) -> bool:
    if name.startswith("_"):
        return False
    if name not in call.scope or call.function is None:
        return True
    binding = binding_of(call.function, name, line)
    return binding is not None and getattr(binding, "lineno", line) < line


def holds(module: nn.Module, value: Any) -> bool:
    """Say whether a module or tensor is registered in a module."""
    if has_type(value, nn.Module):
        return any(one is value for one in nn.Module.modules(module))
    return any(one is value for _, one in tensors_of(module, ""))


def short(text: str) -> str:
    """A text cut to a length that fits into a row."""
    return text if len(text) <= _MANY_CHARACTERS else f"{text[: _MANY_CHARACTERS - 3]}..."
