"""The command `devicekit env`."""

from __future__ import annotations

import argparse
import sys

from devicekit.cli.output import (
    COULD_NOT_CHECK,
    FOUND_PROBLEM,
    OK,
    add_form,
    print_json,
    use_color,
    width,
)

__all__ = ["add_to", "run"]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "env",
        help="versions of torch, CUDA, driver and nvcc, and whether they fit",
        description="Report the versions of torch, CUDA, driver and nvcc, and whether they fit.",
    )
    add_form(parser)
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "never"),
        default="error",
        help="the level of finding that makes the exit code 1 (default: error)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report on the environment, and return the exit code."""
    from devicekit.env import environment
    from devicekit.env.text import as_markdown, as_text

    report = environment()
    if args.json:
        print_json(report.to_dict())
    elif args.markdown:
        print(as_markdown(report), end="")
    else:
        print(as_text(report, width=width(), color=use_color(sys.stdout)), end="")
    if not report.checked:
        return COULD_NOT_CHECK
    failing = {"error": ("error",), "warning": ("error", "warning"), "never": ()}[args.fail_on]
    return FOUND_PROBLEM if report.worst() in failing else OK
