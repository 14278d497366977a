"""From an exception to a report with names."""

import ast
import reprlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.diagnosis.compiled import traced_calls
from devicekit.diagnosis.frames import GENERATOR, MISSING, Call, calls_of, has_type, lookup
from devicekit.diagnosis.making import inline
from devicekit.diagnosis.mending import use
from devicekit.diagnosis.mentions import Mention
from devicekit.diagnosis.messages import (
    devices_in,
    devices_said,
    first_line,
    is_suspect,
    wants_host,
)
from devicekit.diagnosis.operands import made_in, mended
from devicekit.diagnosis.origin import inside, search_in, trace
from devicekit.diagnosis.raising import chain_of, is_candidate, is_raised_by_user
from devicekit.diagnosis.report import Report, Row, mismatch, site_of
from devicekit.diagnosis.search import Origin, short
from devicekit.diagnosis.source import Fix
from devicekit.diagnosis.tensors import describe, devices_of
from devicekit.diagnosis.things import Thing, target_of, things_in
from devicekit.errors import DeviceMismatchError

__all__ = ["explain", "report_of"]

_MANY_CALLS = 12
_MANY_TENSORS = 6
_MANY_RIGHT = 2


def explain(exc: BaseException) -> str | None:
    """Say which tensor a device error is about, where it came from, and what to type.

    Reads the frames of the exception, so call it where the exception was caught.

    Args:
        exc: Any exception.

    Returns:
        The text that `guard` would have raised, or None when the exception is not about tensors on
        different devices.

    Raises:
        TypeError: `exc` is no exception.

    Example:
        >>> import torch
        >>> try:
        ...     torch.zeros(2) + torch.zeros(3)
        ... except RuntimeError as error:
        ...     print(explain(error))
        None
    """
    if not isinstance(exc, BaseException):
        raise TypeError(f"`exc` must be an exception that was caught, but is {reprlib.repr(exc)}")
    for error in chain_of(exc):
        if isinstance(error, DeviceMismatchError) and "\n" in str(error):
            return str(error)
    report = _first_report(exc, "")
    return None if report is None else str(report)


def report_of(error: BaseException, where: str = "") -> Report | None:
    """Explain an exception, or return None when it is not about devices.

    Args:
        error: The exception, while its frames are there.
        where: The name of what was guarded; without one, that of the function that failed.
    """
    return _first_report(error, where) if is_candidate(error) else None


def _first_report(raised: BaseException, where: str) -> Report | None:
    try:
        for error in chain_of(raised):
            if not is_candidate(error) or not is_suspect(str(error)):
                continue
            report = _explained(error, str(error), where, raised)
            if report is not None:
                return report
    except Exception:
        # Whatever stands in the user's frames, explaining an error must not put another in its
        # place. Nothing is lost: the error itself goes on.
        return None
    return None


def _explained(error: BaseException, text: str, where: str, raised: BaseException) -> Report | None:
    is_cause = error is not raised
    outer = raised.__traceback__ if is_cause else None
    users, library = calls_of(outer or error.__traceback__, cause=outer and error.__traceback__)
    if not users or is_raised_by_user(error.__traceback__, users[0]):
        return None
    host = wants_host(text)
    traced = traced_calls(text, library)
    if traced:
        report = _at([*traced, *users], text, host, where, said=True)
        if report is not None:
            return report
    for at in range(min(len(users), _MANY_CALLS)):
        report = _at(users[at:], text, host, where)
        if report is None and at == 0 and not host:
            report = _of_made(users, text, where)
        if report is not None:
            return report
    # Of a cause, the words alone are not enough to put another error in the place of a library's.
    return _unnamed(users, library, "" if is_cause else text, where)


def _at(
    calls: list[Call], text: str, host: bool, where: str, *, said: bool = False
) -> Report | None:
    """Explain the statement of the innermost of some frames; None if its names do not differ.

    Args:
        calls: The frames.
        text: The error's text.
        host: Whether the operation runs on the CPU.
        where: The name of what was guarded.
        said: Whether the text is believed about the devices, as not all values can be seen.
    """
    call = calls[0]
    things = things_in(call)
    generators = [t.mention for t in things if has_type(t.mention.value, GENERATOR)]
    devices = devices_of(t for thing in things for _, t in thing.tensors)
    if said and devices:
        devices = list(dict.fromkeys([*devices, *devices_said(text)]))
    if generators and "generator" in text:
        return _of_generator(calls, generators, things, text, where)
    if host:
        if "1D CPU int64" in text:  # the lengths of pack_padded_sequence, not what is packed
            things = [t for t in things if any(_is_lengths(one) for _, one in t.tensors)]
        accelerated = [device for device in devices if device.type != "cpu"]
        if not accelerated or not things:
            return None
        return _report(calls, things, accelerated, torch.device("cpu"), first_line(text), where)
    if len(devices) > 1:
        target = target_of([(t.mention.value, t.tensors) for t in things], devices)
        return _report(calls, things, devices, target, mismatch(devices, target), where)
    if len(devices) == 1:
        return _of_inline(calls, things, devices[0], text, where)
    return None


def _in_own_frame(
    calls: list[Call], things: Sequence[Thing], target: torch.device
) -> tuple[list[Call], Sequence[Thing]]:
    """Go from a library's statement out to the user's that brought the same tensors, if any."""
    if not calls[0].is_peer:
        return calls, things
    culprits = {_memory(t) for thing in things for _, t in thing.off(target)}
    for at in range(1, len(calls)):
        if calls[at].is_peer:
            continue
        outer = [_without_parts(thing, target) for thing in things_in(calls[at])]
        if any(_memory(t) in culprits for thing in outer for _, t in thing.tensors):
            return calls[at:], outer
    return calls, things


def _without_parts(thing: Thing, target: torch.device) -> Thing:
    """Leave out the parts of a model that are elsewhere: the layer's own statement says more."""
    here = [(path, tensor) for path, tensor in thing.tensors if tensor.device == target]
    if not here or not has_type(thing.mention.value, nn.Module):
        return thing
    return Thing(thing.mention, here)


def _memory(tensor: Tensor) -> int:
    """The identity of a tensor, or of the one that it is a view of."""
    return id(tensor if tensor._base is None else tensor._base)


def _is_lengths(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int64 and tensor.dim() == 1


def _report(
    calls: list[Call],
    things: Sequence[Thing],
    devices: Sequence[torch.device],
    target: torch.device,
    problem: str,
    where: str,
) -> Report:
    calls, things = _in_own_frame(calls, things, target)
    rows: list[Row] = []
    off_rows: list[Row] = []
    origins: list[tuple[Thing, Origin]] = []
    for thing in things:
        off = thing.off(target)
        if not thing.tensors:
            continue
        if not off:
            rows += _rows(thing, thing.tensors, "")
            continue
        origin = _origin(calls, thing, off, target)
        if has_type(thing.mention.value, nn.Module) and len(off) < len(thing.tensors):
            rows.append(Row(str(target), thing.mention.path, describe(thing.mention.value)))
        elif not has_type(thing.mention.value, nn.Module):
            right = [(path, t) for path, t in thing.tensors if t.device == target]
            rows += _rows(thing, right[:_MANY_RIGHT], "")
        what = origin.what if origin is not None else ""
        if has_type(thing.mention.value, Optimizer):
            what = what or "did not move with the model"
        off_rows += _rows(thing, off, what)
        if origin is not None:
            origins.append((thing, origin))
    return Report(
        where or calls[0].name,
        problem,
        site_of(calls[0]),
        rows + off_rows,
        _fixes(calls, origins, target),
    )


def _rows(thing: Thing, tensors: Sequence[tuple[str, Tensor]], what: str) -> list[Row]:
    value = thing.mention.value
    devices = devices_of(t for _, t in tensors)
    suffix = f", {what}" if what else ""
    if has_type(value, nn.Module) and len(devices) == 1 and len(tensors) == len(thing.tensors):
        return [Row(str(devices[0]), thing.mention.path, describe(value) + suffix)]
    shown = tensors[:_MANY_TENSORS]
    rows = [Row(str(t.device), path, describe(t) + suffix) for path, t in shown]
    if len(tensors) > len(shown):
        rows.append(Row("", "", f"and {len(tensors) - len(shown)} more in {thing.mention.path}"))
    return rows


def _origin(
    calls: list[Call], thing: Thing, off: Sequence[tuple[str, Tensor]], target: torch.device
) -> Origin | None:
    value, node = thing.mention.value, thing.mention.node
    search = search_in(calls, target, calls[0].file)
    if has_type(value, nn.Module) and len(off) < len(thing.tensors):
        return inside(search, value, off)
    if target.type == "cpu" and has_type(value, Tensor):
        # The operation runs on the host: the tensor is right where it is, until here.
        return use(search, node, 0, "")
    return trace(search, value, node)


def _fixes(
    calls: list[Call], origins: Sequence[tuple[Thing, Origin]], target: torch.device
) -> list[Fix]:
    fixes = list(dict.fromkeys(o.fix for _, o in origins if o.fix is not None))
    if len(fixes) < 2:
        return fixes
    names = [o.name for _, o in origins if o.name is not None]
    if len(names) == len(origins) and target.type != "cpu":
        joined = ", ".join(dict.fromkeys(names))
        places = {f.place for f in fixes}
        place = places.pop() if len(places) == 1 else f"before line {calls[0].line}"
        return [Fix(f'{joined} = devicekit.to_device(({joined}), "{target}")', place)]
    return fixes[:3]


def _of_generator(
    calls: list[Call],
    generators: Sequence[Mention],
    things: Sequence[Thing],
    text: str,
    where: str,
) -> Report | None:
    wanted = next(iter(devices_in(text)), "")
    for mention in generators:
        device = mention.value.device
        target = _demanded(calls[0], things, wanted)
        if target is None or device.type == target.type:
            continue
        origin = trace(search_in(calls, target, calls[0].file), mention.value, mention.node)
        rows = [row for thing in things if thing.tensors for row in _rows(thing, thing.tensors, "")]
        rows.append(Row(str(device), mention.path, "generator of another device"))
        fixes = [origin.fix] if origin is not None and origin.fix is not None else []
        return Report(where or calls[0].name, first_line(text), site_of(calls[0]), rows, fixes)
    return None


def _demanded(call: Call, things: Sequence[Thing], wanted: str) -> torch.device | None:
    """The device that an operation runs on, by its tensors, by `device=`, or by the error."""
    for device in devices_of(t for thing in things for _, t in thing.tensors):
        if device.type != "cpu":
            return device
    for node in ast.walk(call.expression) if call.expression is not None else ():
        if isinstance(node, ast.keyword) and node.arg == "device":
            value = lookup(node.value, call)
            if value is not MISSING and value is not None:
                return torch.device(value)
    try:
        return torch.device(wanted) if wanted else None
    except RuntimeError:  # the text names a device by another name than torch's
        return None


def _of_inline(
    calls: list[Call], things: Sequence[Thing], target: torch.device, text: str, where: str
) -> Report | None:
    """All names agree: the one that is off was made in the statement itself."""
    if target.type == "cpu":
        return None
    made = inline(search_in(calls, target, calls[0].file))
    if made is None:
        return None
    source, origin = made
    rows = [row for thing in things if thing.tensors for row in _rows(thing, thing.tensors, "")]
    rows.append(Row("cpu", source, origin.what))
    return Report(
        where or calls[0].name,
        mismatch([torch.device("cpu")], target),
        site_of(calls[0]),
        rows,
        [origin.fix] if origin.fix is not None else [],
    )


def _of_made(calls: list[Call], text: str, where: str) -> Report | None:
    """Not all that met has a name: some tensors and layers were made in the statement itself."""
    call = calls[0]
    made = made_in(call, devices_in(text)) if call.expression is not None else []
    things = [thing for thing in things_in(call) if thing.tensors]
    named = devices_of(t for thing in things for _, t in thing.tensors)
    devices = list(dict.fromkeys([*named, *(one.device for one in made)]))
    if not made or len(devices) < 2:
        return None
    target = target_of([(t.mention.value, t.tensors) for t in things], devices)
    rows: list[Row] = []
    origins: list[tuple[Thing, Origin]] = []
    for thing in things:
        off = thing.off(target)
        origin = _origin(calls, thing, off, target) if off else None
        rows += _rows(thing, thing.tensors, origin.what if origin is not None else "")
        if origin is not None:
            origins.append((thing, origin))
    rows += [Row(str(one.device), short(ast.unparse(one.node)), one.what) for one in made]
    rows.sort(key=lambda row: row.device != str(target))
    fixes = mended(
        [one for one in made if one.device != target], search_in(calls, target, call.file)
    )
    return Report(
        where or call.name,
        mismatch(devices, target),
        site_of(call),
        rows,
        [*_fixes(calls, origins, target), *fixes],
    )


def _unnamed(users: list[Call], library: list[Call], text: str, where: str) -> Report | None:
    """No name in the user's code is off: look at what torch's own functions were given."""
    for call in library:
        tensors = [(n, v) for n, v in call.scope.items() if has_type(v, Tensor)]
        devices = devices_of(t for _, t in tensors)
        if len(devices) < 2:
            continue
        target = target_of([], devices)
        rows = [Row(str(t.device), n, f"{describe(t)}, in {call.name}") for n, t in tensors]
        rows.sort(key=lambda row: row.device != str(target))
        problem = mismatch(devices, target)
        return Report(where or users[0].name, problem, site_of(users[0]), rows, [])
    devices = devices_said(text)
    if len(devices) < 2:
        return None
    return Report(where or users[0].name, mismatch(devices), site_of(users[0]), [], [])
