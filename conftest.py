"""Runs the examples of the README, the docs and the docstrings; lets tests run pytest."""

from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

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
