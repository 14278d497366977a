"""From a failure or a model to a report with names: `explain` and `audit`."""

from devicekit.diagnosis.auditing import audit
from devicekit.diagnosis.explanation import explain
from devicekit.diagnosis.findings import Audit, Finding

__all__ = ["Audit", "Finding", "audit", "explain"]
