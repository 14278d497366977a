"""Asking another program: run it to its end, and read what it printed."""

import os
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["run", "run_python"]


def run(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program that must not read our input or disturb our output.

    Args:
        command: The program and its arguments.
        timeout_s: Seconds after which it is killed.

    Raises:
        OSError: It could not be started.
        subprocess.TimeoutExpired: It took too long.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
    )


def run_python(arguments: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run this Python with other arguments.

    Args:
        arguments: Those of the Python interpreter.
        timeout_s: Seconds after which it is killed.

    Raises:
        OSError: It could not be started, or this program is an application with Python inside,
            which would be started once more.
        subprocess.TimeoutExpired: It took too long.
    """
    if not os.path.basename(sys.executable or "").lower().startswith("py"):
        raise OSError(f"{sys.executable!r} is not a Python interpreter")
    return run([sys.executable, *arguments], timeout_s=timeout_s)
