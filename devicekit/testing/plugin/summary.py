"""The last section of a run: on which devices how many tests ran, and what was not exercised."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypedDict

import pytest

PROPERTY = "devicekit_device"
"""The property of a test's report that names the device it was for."""


class Facts(TypedDict):
    """What the summary says, in a form that travels between processes."""

    specs: list[str]
    left_out: dict[str, str]
    only_accelerator: int
    files: list[str]


def lines(facts: Facts, stats: "dict[str, list[object]]") -> Iterable[str]:
    """Writes the summary from a run's reports by outcome, as pytest's terminal reporter has them.

    Args:
        facts: What was selected and left out.
        stats: The reports of all tests.
    """
    ran: Counter[str] = Counter()
    skipped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for outcome, reports in stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport):
                continue
            spec = dict(report.user_properties).get(PROPERTY)
            if spec is None:
                continue
            if outcome == "skipped":
                skipped[str(spec)][_reason(report)] += 1
            elif report.when == "call":
                ran[str(spec)] += 1
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


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")
