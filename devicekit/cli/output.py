"""What the commands share: exit codes, the forms of output, and where it goes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from typing import Any, TextIO

__all__ = [
    "BROKEN_PIPE",
    "COULD_NOT_CHECK",
    "FOUND_PROBLEM",
    "INTERRUPTED",
    "OK",
    "add_form",
    "height",
    "mute",
    "note",
    "print_json",
    "use_color",
    "width",
]

OK, FOUND_PROBLEM, COULD_NOT_CHECK, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add the options for the form of the output; without one it is for people to read."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument(
        "--markdown",
        action="store_true",
        help="for pasting into an issue: without paths and user names",
    )


def print_json(value: dict[str, Any], *, line: bool = False) -> None:
    """Print a JSON document; with `line`, on one line."""
    print(json.dumps(value, indent=None if line else 2), flush=True)


def note(text: str) -> None:
    """Print a remark, which is not data."""
    print(f"devicekit: {text}", file=sys.stderr)


def width() -> int:
    """The columns of the terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def height() -> int:
    """The lines of the terminal."""
    return shutil.get_terminal_size((80, 24)).lines


def use_color(stream: TextIO) -> bool:
    """Follow NO_COLOR (no-color.org), then FORCE_COLOR (force-color.org), then the terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def mute(stream: TextIO) -> None:
    """Send what is still buffered nowhere, so that the interpreter does not complain at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        # A stream without a file has no buffer to lose.
        pass
