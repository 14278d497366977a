"""The command `devicekit`: env, devices, monitor.

Data goes to stdout, remarks go to stderr. Exit codes:

| command   | 0                   | 1                               | 2                     |
| --------- | ------------------- | ------------------------------- | --------------------- |
| `env`     | nothing wrong found | a problem found (`--fail-on`)   | torch cannot be asked |
| `devices` | all resolved        | a device asked for is not there | not a device, or no torch |
| `monitor` | printed             | no GPU that can be asked        | wrong arguments       |

Wrong arguments are 2 for all. Ctrl-C ends `monitor --watch` with 0 and the others with 130. A
reader that closes the pipe early ends any of them with 141, without a message.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from devicekit import __version__
from devicekit.records import Record

if TYPE_CHECKING:
    from devicekit.monitor import Snapshot

__all__ = ["main"]

SCHEMA_VERSION = 1
OK, FOUND_PROBLEM, COULD_NOT_CHECK, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
_SHORTEST_S, _DEFAULT_S = 0.25, 2.0
_INSTALL_RICH = "For a table that refreshes in place, run: pip install 'torch-devicekit[monitor]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: The arguments; `None`: those of the process.

    Example:
        >>> main(["monitor", "--count", "1"]) in (0, 1)
        True
    """
    args = _parser().parse_args(argv)
    if hasattr(sys.stdout, "reconfigure"):
        # A name that the terminal cannot show must not end the report.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _mute(sys.stdout)
        return BROKEN_PIPE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="devicekit",
        description="Devices for PyTorch: what is installed, what is usable, what runs now.",
    )
    parser.add_argument("--version", action="version", version=f"devicekit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{env,devices,monitor}")

    env = commands.add_parser(
        "env",
        help="versions of torch, CUDA, driver and nvcc, and whether they fit",
        description="Report the versions of torch, CUDA, driver and nvcc, and whether they fit.",
    )
    _add_form(env)
    env.add_argument(
        "--fail-on",
        choices=("error", "warning", "never"),
        default="error",
        help="the level of finding that makes the exit code 1 (default: error)",
    )
    env.set_defaults(run=_env)

    devices = commands.add_parser(
        "devices",
        help="the devices torch can use here, and why not the others",
        description="List the devices that torch can use here, and why the others cannot be used.",
    )
    devices.add_argument("spec", nargs="*", metavar="SPEC", help='such as "auto", "gpu", "cuda:1"')
    _add_form(devices)
    devices.set_defaults(run=_devices)

    monitor = commands.add_parser(
        "monitor",
        help="the GPUs and their processes now",
        description="Show the GPUs and their processes now. No CUDA context is created.",
    )
    _add_form(monitor)
    monitor.add_argument(
        "--watch",
        nargs="?",
        type=_interval,
        const=_DEFAULT_S,
        metavar="SECONDS",
        help=f"refresh at this interval (default: {_DEFAULT_S:g}, at least {_SHORTEST_S:g}); "
        "with --json one line for each",
    )
    monitor.add_argument("--count", type=_count, metavar="N", help="stop after N refreshes")
    monitor.set_defaults(run=_monitor)
    return parser


def _add_form(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument(
        "--markdown",
        action="store_true",
        help="for pasting into an issue: without paths and user names",
    )


def _interval(text: str) -> float:
    seconds = float(text)
    if not _SHORTEST_S <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of at least {_SHORTEST_S:g} s")
    return seconds


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not at least 1")
    return number


# env ...


def _env(args: argparse.Namespace) -> int:
    from devicekit.env import environment
    from devicekit.env.text import as_markdown, as_text

    report = environment()
    if args.json:
        _print_json(report.to_dict())
    elif args.markdown:
        print(as_markdown(report), end="")
    else:
        print(as_text(report, width=_width(), color=_use_color(sys.stdout)), end="")
    if not report.checked:
        return COULD_NOT_CHECK
    failing = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[args.fail_on]
    return FOUND_PROBLEM if report.worst() in failing else OK


# devices ...


@dataclass(frozen=True, kw_only=True)
class _Asked(Record):
    """What became of a device that was asked for."""

    spec: str
    device: str | None
    name: str | None = None
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class _Backend(Record):
    """A type of device, usable or not."""

    type: str
    count: int
    reason: str
    sentence: str
    remedy: str


def _devices(args: argparse.Namespace) -> int:
    try:
        from devicekit.device import Device
        from devicekit.probe import known_types, probe
    except Exception as error:
        # Importing a broken torch raises anything; its text is what the user needs.
        problem = f"torch cannot be imported: {type(error).__name__}: {error}"
        if args.json:
            _print_json({"schema_version": SCHEMA_VERSION, "problem": problem})
        _note(f"{problem}. For more, run: devicekit env")
        return COULD_NOT_CHECK
    if args.spec:
        asked = [_resolve(spec) for spec in args.spec]
        if args.json:
            rows = [each.to_dict() for _, each in asked]
            _print_json({"schema_version": SCHEMA_VERSION, "requested": rows})
        else:
            lines = [_asked_line(each) for _, each in asked]
            _print_lines(lines, args.markdown)
        return max(code for code, _ in asked)
    usable = [
        _Asked(spec=str(device), device=str(device), name=device.name)
        for device in Device.available()
    ]
    backends = [
        _Backend(
            type=answer.type,
            count=answer.count,
            reason=answer.reason or "",
            sentence=answer.sentence,
            remedy=answer.remedy,
        )
        for answer in map(probe, known_types())
        if answer.type != "meta"
    ]
    if args.json:
        _print_json(
            {
                "schema_version": SCHEMA_VERSION,
                "devices": [{"device": each.device, "name": each.name} for each in usable],
                "backends": [backend.to_dict() for backend in backends],
            }
        )
        return OK
    lines = [*map(_usable_line, usable), *_unusable_lines(backends)]
    _print_lines(lines, args.markdown)
    return OK


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
    return asked.spec, "ok", f"{_named(asked)}{why}"


def _named(asked: _Asked) -> str:
    return asked.device or "" if asked.name == asked.device else f"{asked.device}, {asked.name}"


def _usable_line(asked: _Asked) -> tuple[str, str, str]:
    name = "" if asked.name == asked.device else f", {asked.name}"
    return asked.spec, "ok", f"usable{name}"


def _unusable_lines(backends: Sequence[_Backend]) -> list[tuple[str, str, str]]:
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
    from devicekit.env.text import scrub

    label = max((len(head) for head, _, _ in lines), default=0) + 2
    for head, level, text in lines:
        if markdown:
            print(f"- `{head}`: {scrub(text)}")
            continue
        body = textwrap.fill(
            text,
            max(_width(), 40),
            initial_indent=" " * label,
            subsequent_indent=" " * label,
            break_long_words=False,
            break_on_hyphens=False,
        )
        print(_colored(head, level) + " " * (label - len(head)) + body[label:])


def _colored(text: str, level: str) -> str:
    color = {"ok": "32", "error": "31", "no": "33"}[level]
    return f"\x1b[{color}m{text}\x1b[0m" if _use_color(sys.stdout) else text


# monitor ...


def _monitor(args: argparse.Namespace) -> int:
    from devicekit.monitor import snapshots

    once = args.watch is None and args.count is None
    shown = snapshots(args.watch or _DEFAULT_S, 1 if once else args.count)
    try:
        return _show(shown, args, once)
    except KeyboardInterrupt:
        # Ctrl-C is how one leaves a display that refreshes.
        return INTERRUPTED if once else OK


def _show(shown: Iterable[Snapshot], args: argparse.Namespace, once: bool) -> int:
    notes: set[str] = set()
    with ExitStack() as stack:
        draw: Callable[[Snapshot], None] | None = None
        for shot in shown:
            for note in shot.notes:
                if note not in notes:
                    _note(note)
                notes.add(note)
            if args.json:
                _print_json(shot.to_dict(), line=not once)
            if not shot.gpus:
                _note(f"{shot.problem} {shot.remedy}")
                return FOUND_PROBLEM
            if args.markdown:
                from devicekit.env.text import scrub

                print(scrub(str(shot)), flush=True)
            elif not args.json:
                draw = draw or _drawer(stack, once)
                draw(shot)
    return OK


def _drawer(stack: ExitStack, once: bool) -> Callable[[Snapshot], None]:
    """Return what shows a snapshot: in place on a terminal, below each other elsewhere."""
    if importlib.util.find_spec("rich") is None:
        _note(_INSTALL_RICH)
        return lambda shot: print(_headed(shot, once) + str(shot), flush=True)
    from rich.console import Console
    from rich.live import Live

    from devicekit.monitor.table import as_rich

    color = _use_color(sys.stdout)
    console = Console(
        file=sys.stdout,
        width=_width(),
        color_system="standard" if color else None,
        force_terminal=color or None,
        no_color=not color,
        highlight=False,
        markup=False,
        legacy_windows=False,
    )
    if once or not sys.stdout.isatty():

        def below(shot: Snapshot) -> None:
            print(_headed(shot, once), end="")
            console.print(as_rich(shot, width=_width()))
            sys.stdout.flush()

        return below
    live = stack.enter_context(Live(console=console, auto_refresh=False))

    def in_place(shot: Snapshot) -> None:
        console.width = _width()
        live.update(as_rich(shot, width=_width()), refresh=True)

    return in_place


def _headed(shot: Snapshot, once: bool) -> str:
    if once:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S\n", time.localtime(shot.time_unix_seconds))


# output ...


def _print_json(value: dict[str, Any], *, line: bool = False) -> None:
    print(json.dumps(value, indent=None if line else 2), flush=True)


def _note(text: str) -> None:
    print(f"devicekit: {text}", file=sys.stderr)


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def _use_color(stream: TextIO) -> bool:
    """Follow NO_COLOR (no-color.org), then FORCE_COLOR (force-color.org), then the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _mute(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that the interpreter does not complain at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        # A stream without a file has no buffer to lose.
        pass
