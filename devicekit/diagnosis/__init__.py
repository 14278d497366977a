"""From a failure or a model to a report with names: `explain` and `audit`."""

from devicekit.diagnosis.auditing import Audit, Finding, audit
from devicekit.diagnosis.explanation import explain

__all__ = ["Audit", "Finding", "audit", "explain"]
