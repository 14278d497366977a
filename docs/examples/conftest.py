"""The sample project is red on purpose: `tests/plugin/test_downstream.py` runs it."""

collect_ignore = ["downstream"]
