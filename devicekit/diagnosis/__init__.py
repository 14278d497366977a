"""From a failure or a model to a report with names."""

from devicekit.diagnosis.explanation import explain

__all__ = ["explain"]
