"""The command `devicekit devices`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from devicekit.cli.output import (
    COULD_NOT_CHECK,
    FOUND_PROBLEM,
    OK,
    add_form,
    note,
    print_json,
    use_color,
    width,
)
from devicekit.records import Record

if TYPE_CHECKING:
    from devicekit.probe import Probe

__all__ = ["add_to", "run"]

SCHEMA_VERSION = 1


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "devices",
        help="the devices torch can use here, and why not the others",
        description="List the devices that torch can use here, and why the others cannot be used.",
    )
    parser.add_argument("spec", nargs="*", metavar="SPEC", help='such as "auto", "gpu", "cuda:1"')
    add_form(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, kw_only=True)
class _Asked(Record):
    """What became of a device that was asked for."""

    spec: str
    device: str | None
    name: str | None = None
    sentence: str = ""


def run(args: argparse.Namespace) -> int:
    """Print what each device asked for is, or all there are; return the exit code."""
    try:
        import devicekit.device  # noqa: F401
    except Exception as error:
        # Importing a broken torch raises anything; its text is what the user needs.
        problem = f"torch cannot be imported: {type(error).__name__}: {error}"
        if args.json:
            print_json({"schema_version": SCHEMA_VERSION, "problem": problem})
        note(f"{problem}. For more, run: devicekit env")
        return COULD_NOT_CHECK
    return _print_asked(args) if args.spec else _print_all(args)


def _print_asked(args: argparse.Namespace) -> int:
    asked = [_resolve(spec) for spec in args.spec]
    if args.json:
        rows = [each.to_dict() for _, each in asked]
        print_json({"schema_version": SCHEMA_VERSION, "requested": rows})
    else:
        _print_lines([_asked_line(each) for _, each in asked], args.markdown)
    return max(code for code, _ in asked)


def _resolve(spec: str) -> tuple[int, _Asked]:
    """Return the exit code and what a spec stands for."""
    from devicekit.device import Device
    from devicekit.errors import DeviceSpecError, DeviceUnavailableError

    try:
        device = Device(spec, fallback=None)
    except DeviceUnavailableError as error:
        reasons = dict.fromkeys(("device", "name"), error.reason)
        return FOUND_PROBLEM, _Asked(spec=spec, device=None, sentence=str(error), reasons=reasons)
    except DeviceSpecError as error:
        reasons = dict.fromkeys(("device", "name"), "not_a_device")
        return COULD_NOT_CHECK, _Asked(spec=spec, device=None, sentence=str(error), reasons=reasons)
    return OK, _Asked(spec=spec, device=str(device), name=device.name, sentence=device.why)


def _asked_line(asked: _Asked) -> tuple[str, str, str]:
    if asked.device is None:
        return asked.spec, "error", asked.sentence
    why = f" ({asked.sentence.rstrip('.')})" if asked.sentence else ""
    return asked.spec, "ok", f"{_with_name(asked.device, asked.device, asked.name)}{why}"


def _with_name(text: str, device: str, name: str | None) -> str:
    # The CPU, for one, has no name but that of its type.
    return text if name == device else f"{text}, {name}"


def _print_all(args: argparse.Namespace) -> int:
    from devicekit.device import Device
    from devicekit.probe import known_types, probe

    usable = [(str(device), device.name) for device in Device.available()]
    backends = [answer for answer in map(probe, known_types()) if answer.type != "meta"]
    if args.json:
        print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "devices": [{"device": device, "name": name} for device, name in usable],
                "backends": [
                    {**asdict(backend), "reason": backend.reason or ""} for backend in backends
                ],
            }
        )
        return OK
    lines = [(device, "ok", _with_name("usable", device, name)) for device, name in usable]
    _print_lines([*lines, *_unusable_lines(backends)], args.markdown)
    return OK


def _unusable_lines(backends: Sequence[Probe]) -> list[tuple[str, str, str]]:
    """Return a line for each backend that is not usable; rare ones that are not built share one."""
    lines, rare = [], []
    for backend in backends:
        if backend.count:
            continue
        if backend.reason == "not_built" and backend.type != "cuda":
            rare.append(backend.type)
            continue
        sentence = f"{backend.sentence}; {backend.remedy}".rstrip("; ")
        lines.append((backend.type, "no", f"{backend.reason}: {sentence}"))
    if rare:
        lines.append(("others", "no", f"not_built: {', '.join(rare)} (--json has each)"))
    return lines


def _print_lines(lines: Sequence[tuple[str, str, str]], markdown: bool) -> None:
    from devicekit.env.text import scrub, wrapped

    label = max((len(head) for head, _, _ in lines), default=0) + 2
    for head, level, text in lines:
        if markdown:
            print(f"- `{head}`: {scrub(text)}")
            continue
        body = wrapped(text, width(), label)[label:]
        print(_colored(head, level) + " " * (label - len(head)) + body)


def _colored(text: str, level: str) -> str:
    color = {"ok": "32", "error": "31", "no": "33"}[level]
    return f"\x1b[{color}m{text}\x1b[0m" if use_color(sys.stdout) else text
