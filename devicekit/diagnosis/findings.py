"""The report of `audit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

__all__ = ["Audit", "Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that will fail later.

    Attributes:
        kind: One of "attribute", "container", "layer", "hook", "meta", "device", "detached",
            "optimizer", "state", "tie".
        path: The Python expression that leads to it.
        device: Where it is.
        what: What is wrong, in words.
        fix: A line of code that mends it, with the place to type it as a comment.
    """

    kind: str
    path: str
    device: str
    what: str
    fix: str


class Audit:
    """What `audit` found: iterate over it, print it, or ask whether it is empty.

    Attributes:
        model: The name of the model's class.
        device: The device that everything should be on; None for a model without tensors.
        findings: What was found.
    """

    def __init__(self, model: str, device: str | None, findings: tuple[Finding, ...]) -> None:
        self.model = model
        self.device = device
        self.findings = findings

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        return bool(self.findings)

    def __repr__(self) -> str:
        return f"<Audit of {self.model}: {self._count()}>"

    def __str__(self) -> str:
        head = f"{self.model}: {self._count()}"
        if not self.findings:
            return head
        devices = max(len(one.device) for one in self.findings)
        paths = max(17, *(len(one.path) for one in self.findings))
        blocks = [
            f"  {one.device:<{devices}}  {one.path:<{paths}}  {one.what}\n  fix: {one.fix}"
            for one in self.findings
        ]
        return "\n\n".join([head, *blocks])

    def _count(self) -> str:
        number = len(self.findings)
        if number == 0:
            return "nothing that will fail"
        return f"{number} thing{'' if number == 1 else 's'} that will fail"

    def json(self) -> str:
        """The report as JSON: `version`, `model`, `device`, and `findings` with their fields."""
        return json.dumps(
            {
                "version": 1,
                "model": self.model,
                "device": self.device,
                "findings": [asdict(one) for one in self.findings],
            },
            indent=2,
        )
