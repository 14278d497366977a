"""Runs the examples of the README, the docs and the docstrings; lets tests run pytest."""

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

OPTIONS = ELLIPSIS | NORMALIZE_WHITESPACE

pytest_plugins = ["pytester"]

pages = Sybil(
    parsers=[PythonCodeBlockParser(doctest_optionflags=OPTIONS), SkipParser()],
    patterns=["README*.md", "docs/*.md", "docs/*/*.md"],
)
docstrings = Sybil(
    parsers=[DocTestParser(OPTIONS)],
    patterns=["devicekit/*.py", "devicekit/*/*.py", "devicekit/*/*/*.py"],
)
pytest_collect_file = (pages + docstrings).pytest()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep each file in one process: the examples of a page build on one another."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)
