"""The base of the typed data that reports hand out, and its form as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["Record"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Typed data in which a value that is not known is `None` and says why.

    Attributes:
        reasons: For each attribute that is `None` or empty: the code of the reason.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Fan(Record):
        ...     speed_percent: int | None
        >>> Fan(speed_percent=None, reasons={"speed_percent": "not_supported"}).to_dict()
        {'speed_percent': None, 'speed_percent_reason': 'not_supported'}
    """

    # A dict cannot be hashed; two records that differ in their reasons alone are still unequal.
    reasons: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as what `json.dumps` takes; `None` comes with `<key>_reason`."""
        found: dict[str, Any] = {}
        for item in fields(self):
            if item.name == "reasons":
                continue
            value = getattr(self, item.name)
            found[item.name] = _plain(value)
            if value is None or (value == () and item.name in self.reasons):
                found[f"{item.name}_reason"] = self.reasons.get(item.name, "not_applicable")
        return found


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value
