"""The last section of a run: on which devices how many tests ran, and what was not exercised."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import pytest


class Facts(TypedDict):
    """What the summary says, in a form that travels between processes."""

    specs: list[str]
    left_out: dict[str, str]
    only_accelerator: int
    files: list[str]
    problem: str | None


def lines(facts: Facts, reports: list[tuple[str, str, pytest.TestReport]]) -> Iterable[str]:
    """Writes the summary of a run.

    Args:
        facts: What was selected and left out.
        reports: The reports of the tests that took a device, each with its device and outcome.
    """
    ran: Counter[str] = Counter()
    skipped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for spec, outcome, report in reports:
        if outcome == "skipped":
            skipped[spec][_reason(report)] += 1
        elif report.when == "call":
            ran[spec] += 1
    counts = [
        f"{spec} {ran[spec]}" + (f" ({skipped[spec].total()} skipped)" if skipped[spec] else "")
        for spec in facts["specs"]
    ]
    if counts:
        yield f"tests run on: {', '.join(counts)}"
    for spec in facts["specs"]:
        for reason, count in skipped[spec].items():
            yield f"skipped on {spec}: {count}: {reason.removeprefix(f'{spec}: ')}"
    types: defaultdict[str, list[str]] = defaultdict(list)
    for type_, reason in facts["left_out"].items():
        types[reason].append(type_)
    for reason, found in types.items():
        yield f"not exercised: {', '.join(found)}: {reason}"
    if facts["only_accelerator"]:
        yield f"left out by --devicekit-only-accelerator: {facts['only_accelerator']} tests"


def remove(files: list[str]) -> None:
    """Removes the files that the workers of the run have locked."""
    for name in files:
        Path(name).unlink(missing_ok=True)


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")
