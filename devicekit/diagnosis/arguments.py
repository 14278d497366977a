"""The report on arguments that do not fit together."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from devicekit.diagnosis.frames import Call, calls_of
from devicekit.diagnosis.making import inline
from devicekit.diagnosis.mentions import Mention, mentions
from devicekit.diagnosis.origin import bringing, contains, is_assignable, search_in, trace
from devicekit.diagnosis.report import Report, Row, mismatch
from devicekit.diagnosis.search import Origin
from devicekit.diagnosis.source import Fix
from devicekit.diagnosis.tensors import describe, devices_of, is_free
from devicekit.diagnosis.things import target_of

__all__ = ["Argument", "report_of_arguments"]

_MANY_RIGHT = 3


@dataclass
class Argument:
    """An argument, with all its tensors and their paths.

    Attributes:
        name: What it is called.
        value: What it is.
        tensors: Its tensors, with their paths.
        is_typed: Whether the user can type the name, so that it may stand in a fix.
    """

    name: str
    value: Any
    tensors: list[tuple[str, Tensor]]
    is_typed: bool = True

    def off(self, target: torch.device) -> list[tuple[str, Tensor]]:
        """The tensors that are somewhere else than on a device."""
        return [(p, t) for p, t in self.tensors if t.device != target and not is_free(t)]


def report_of_arguments(
    where: str,
    arguments: Sequence[Argument],
    demanded: torch.device | None,
    frame: FrameType,
    *,
    rename: bool = False,
) -> Report | None:
    """Report on arguments that are on several devices; None if they are not.

    Args:
        where: The function that was called.
        arguments: Its arguments.
        demanded: The device that all must be on, or None.
        frame: The caller's frame, or one of torch's in between.
        rename: Call the arguments by the names that they have in the caller.
    """
    devices = devices_of(t for argument in arguments for _, t in argument.tensors)
    if demanded is None and len(devices) < 2:
        return None
    target = demanded or target_of(((a.value, a.tensors) for a in arguments), devices)
    off = [argument for argument in arguments if argument.off(target)]
    if not off:
        return None
    caller = _caller_of(frame, off, target)
    if rename:
        for number, argument in enumerate(arguments):
            caller.rename(argument, number)
    right = [a for a in arguments if a not in off and a.tensors]
    modules = [a for a in right if isinstance(a.value, nn.Module)]
    rows = [row for argument in modules or right[:_MANY_RIGHT] for row in _rows(argument, target)]
    if not rows:
        mixed = [(p, t) for a in off for p, t in a.tensors if t.device == target]
        rows = [Row(str(t.device), path, describe(t)) for path, t in mixed[:1]]
    origins = [caller.origin(argument) for argument in off]
    for argument, origin in zip(off, origins, strict=True):
        suffix = f", {origin.what}" if origin is not None and origin.is_batch else ""
        rows += _off_rows(argument, target, suffix)
    problem = mismatch(devices, target)
    if demanded is not None and target not in devices:
        found = ", ".join(str(device) for device in devices)
        problem = f"expected all tensors to be on {target}, but found {found}"
    return Report(where, problem, None, rows, _fixes(off, origins, target, caller.moved))


def _caller_of(frame: FrameType, off: Sequence[Argument], target: torch.device) -> _Caller:
    try:
        users, _ = calls_of(None, frame)
        return _Caller(_own(users, off), target)
    except Exception:
        # Whatever stands in the caller's frames: nothing is lost but the names that the arguments
        # have there, and the error is raised all the same.
        return _Caller([], target)


def _own(users: list[Call], off: Sequence[Argument]) -> list[Call]:
    """The frames from the user's statement on that brought what is off, past any library's."""
    if not users or not users[0].is_peer:
        return users
    for at, call in enumerate(users):
        if not call.is_peer and any(bringing(call, argument.value) for argument in off):
            return users[at:]
    return []


def _rows(argument: Argument, target: torch.device) -> list[Row]:
    if isinstance(argument.value, nn.Module):
        return [Row(str(target), argument.name, describe(argument.value))]
    return [Row(str(t.device), path, describe(t)) for path, t in argument.tensors[:_MANY_RIGHT]]


def _off_rows(argument: Argument, target: torch.device, suffix: str) -> list[Row]:
    off = argument.off(target)
    if isinstance(argument.value, nn.Module):
        devices = devices_of(t for _, t in off)
        if len(devices) == 1 and len(devices_of(t for _, t in argument.tensors)) == 1:
            return [Row(str(devices[0]), argument.name, describe(argument.value) + suffix)]
    return [Row(str(t.device), path, describe(t) + suffix) for path, t in off]


class _Caller:
    """The statement that made the call, to find the names that the arguments have there."""

    def __init__(self, users: list[Call], target: torch.device) -> None:
        self.users = users
        self.target = target
        self.mentions: list[Mention] = []
        self.moved: dict[str, Any] = {}
        if users and users[0].expression is not None:
            self.mentions = mentions(users[0].expression, users[0])

    def _mention(self, argument: Argument) -> Mention | None:
        return next((one for one in self.mentions if one.value is argument.value), None)

    def _holder(self, argument: Argument) -> Mention | None:
        """What a star spreads over the arguments."""
        return next((one for one in self.mentions if contains(one.value, argument.value)), None)

    def rename(self, argument: Argument, number: int) -> None:
        """Call an argument as the caller does: by its name there, or by the text of the call."""
        mention = self._mention(argument)
        text = mention.path if mention is not None else self._given(number)
        argument.is_typed = text is not None
        if text is not None:
            old = argument.name
            argument.name = text
            argument.tensors = [(p.replace(old, text, 1), t) for p, t in argument.tensors]

    def _given(self, number: int) -> str | None:
        """The text of one positional argument of the call that the caller's statement makes."""
        call = self.users[0].expression if self.users else None
        if not isinstance(call, ast.Call):
            return None
        given = call.args[: number + 1]
        if len(given) <= number or any(isinstance(one, ast.Starred) for one in given):
            return None
        return ast.unparse(given[number])

    def origin(self, argument: Argument) -> Origin | None:
        """What an argument is in the caller, with the fix there."""
        try:
            return self._found(argument)
        except Exception:
            # Whatever stands in the caller's frame: nothing is lost but the name that the argument
            # has there, and the error is raised with the name that it has here.
            return None

    def _found(self, argument: Argument) -> Origin | None:
        mention = self._mention(argument) or self._holder(argument)
        if mention is None:
            made = inline(search_in(self.users, self.target, "")) if self.users else None
            if made is not None and not isinstance(argument.value, nn.Module):
                return made[1]
            return None
        search = search_in(self.users, self.target, "")
        found = trace(search, argument.value, mention.node)
        if found is not None and found.is_batch:
            return found
        if isinstance(mention.node, ast.Name) and is_assignable(mention.node.id, self.users[0]):
            self.moved[mention.node.id] = mention.value
            return Origin("", None, mention.node.id)
        return found


def _is_path(text: str) -> bool:
    """Whether a text is a name, an attribute or an item: something to assign to."""
    return all(part.isidentifier() for part in text.partition("[")[0].split("."))


def _fixes(
    off: Sequence[Argument],
    origins: Sequence[Origin | None],
    target: torch.device,
    moved: dict[str, Any],
) -> list[Fix]:
    """One line that moves all variables; for what is no variable, a line of its own."""
    names: list[str] = []
    single: Argument | None = None
    fixes: list[Fix] = []
    for argument, origin in zip(off, origins, strict=True):
        if not argument.is_typed and (origin is None or origin.fix is None):
            continue
        if isinstance(argument.value, nn.Module):
            name = origin.name if origin is not None and origin.name else argument.name
            fix = origin.fix if origin is not None and origin.fix is not None else None
            fixes.append(fix or Fix(f'{name}.to("{target}")'))
        elif origin is not None and origin.fix is not None:
            fixes.append(origin.fix)
        elif not _is_path(argument.name):  # the text of a call: its value has no name to assign to
            is_tensor = isinstance(argument.value, Tensor)
            move = f'{argument.name}.to("{target}")'
            fixes.append(
                Fix(move if is_tensor else f'devicekit.to_device({argument.name}, "{target}")')
            )
        else:
            name = origin.name if origin is not None and origin.name else argument.name
            names.append(name.partition("[")[0])
            single = argument
    names = list(dict.fromkeys(names))
    if len(names) == 1 and single is not None:
        move = f'{names[0]}.to("{target}")'
        if not isinstance(moved.get(names[0], single.value), Tensor):
            move = f'devicekit.to_device({names[0]}, "{target}")'
        fixes.insert(0, Fix(f"{names[0]} = {move}"))
    elif names:
        joined = ", ".join(names)
        fixes.insert(0, Fix(f'{joined} = devicekit.to_device(({joined}), "{target}")'))
    return list(dict.fromkeys(fixes))
