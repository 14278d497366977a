"""The command `devicekit`: env, devices, monitor.

Data goes to stdout, remarks go to stderr. Exit codes:

| command   | 0                   | 1                               | 2                     |
| --------- | ------------------- | ------------------------------- | --------------------- |
| `env`     | nothing wrong found | a problem found (`--fail-on`)   | torch cannot be asked |
| `devices` | all resolved        | a device asked for is not there | not a device, or no torch |
| `monitor` | printed             | no GPU that can be asked        | wrong arguments       |

Wrong arguments are 2 for all. Ctrl-C ends `monitor --watch` with 0 and the others with 130. A
reader that closes the pipe early ends any of them with 141, without a message.

A command imports what it needs when it runs: the others start without it, and work where it fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from devicekit import __version__
from devicekit.cli import devices, env, monitor
from devicekit.cli.output import BROKEN_PIPE, INTERRUPTED, mute

__all__ = ["main"]


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
        mute(sys.stdout)
        return BROKEN_PIPE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="devicekit",
        description="Devices for PyTorch: what is installed, what is usable, what runs now.",
    )
    parser.add_argument("--version", action="version", version=f"devicekit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{env,devices,monitor}")
    for command in (env, devices, monitor):
        command.add_to(commands)
    return parser
