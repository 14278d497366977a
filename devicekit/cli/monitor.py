"""The command `devicekit monitor`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from devicekit.cli.output import (
    FOUND_PROBLEM,
    INTERRUPTED,
    OK,
    add_form,
    height,
    note,
    print_json,
    use_color,
    width,
)

if TYPE_CHECKING:
    from devicekit.monitor import Snapshot

__all__ = ["add_to", "run"]

_SHORTEST_S, _DEFAULT_S, _LONGEST_S = 0.25, 2.0, 86_400.0
_INSTALL_RICH = "For a table that refreshes in place, run: pip install 'torch-devicekit[monitor]'"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "monitor",
        help="the GPUs and their processes now",
        description="Show the GPUs and their processes now. No CUDA context is created.",
    )
    add_form(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_interval,
        const=_DEFAULT_S,
        metavar="SECONDS",
        help=f"refresh at this interval (default: {_DEFAULT_S:g}, at least {_SHORTEST_S:g}); "
        "with --json one line for each",
    )
    parser.add_argument("--count", type=_count, metavar="N", help="stop after N refreshes")
    parser.set_defaults(run=run)


def _interval(text: str) -> float:
    seconds = _number(text)
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from {_SHORTEST_S:g} to {_LONGEST_S:g}"
        )
    return seconds


def _count(text: str) -> int:
    number = _number(text)
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(number)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        # argparse would print the name of the function that failed.
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def run(args: argparse.Namespace) -> int:
    """Print the GPUs, once or until stopped, and return the exit code."""
    from devicekit.monitor import snapshots

    once = args.watch is None and args.count is None
    shown = snapshots(args.watch or _DEFAULT_S, 1 if once else args.count)
    try:
        return _show(shown, args, once)
    except KeyboardInterrupt:
        # Ctrl-C is how one leaves a display that refreshes.
        return INTERRUPTED if once else OK


def _show(shown: Iterable[Snapshot], args: argparse.Namespace, once: bool) -> int:
    said: set[str] = set()
    with ExitStack() as stack:
        draw: Callable[[Snapshot], None] | None = None
        for shot in shown:
            for remark in shot.notes:
                if remark not in said:
                    note(remark)
                said.add(remark)
            if args.json:
                print_json(shot.to_dict(), line=not once)
            if not shot.gpus:
                note(f"{shot.problem} {shot.remedy}")
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
        note(_INSTALL_RICH)
        return lambda shot: print(_headed(shot, once) + str(shot), flush=True)
    from rich.console import Console
    from rich.live import Live

    from devicekit.monitor.table import as_rich

    color = use_color(sys.stdout)
    console = Console(
        file=sys.stdout,
        width=width(),
        height=height(),  # given both, it does not read COLUMNS, where some values make it fail
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
            console.print(as_rich(shot, width=width()))
            sys.stdout.flush()

        return below
    live = stack.enter_context(Live(console=console, auto_refresh=False))

    def in_place(shot: Snapshot) -> None:
        console.width, console.height = width(), height()
        live.update(as_rich(shot, width=width()), refresh=True)

    return in_place


def _headed(shot: Snapshot, once: bool) -> str:
    if once:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S\n", time.localtime(shot.time_unix_seconds))
