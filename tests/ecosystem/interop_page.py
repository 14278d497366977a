"""Reads docs/interop.md: the blocks of code that the core suite skips, section by section."""

import re
from pathlib import Path
from typing import Any

from sybil import Document
from sybil.parsers.markdown import PythonCodeBlockParser

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
SKIPPED = "<!--- skip: next -->\n\n```python\n"


def sections() -> dict[str, str]:
    """The text of each section by its heading; the beginning of the page has none."""
    parts = ["", *re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def sections_with_peers() -> list[str]:
    return [heading for heading, text in sections().items() if SKIPPED in text]


def blocks(heading: str) -> list[Any]:
    """The beginning of the page and the code of one section, in one fresh namespace."""
    document = Document.parse(str(PAGE), PythonCodeBlockParser())
    wanted = sections()[""] + sections()[heading]
    return [one for one in document.examples() if one.parsed in wanted]


def program(heading: str) -> str:
    """The code of a section as the text of one file."""
    return "\n".join(one.parsed for one in blocks(heading))


def yaml_block(heading: str) -> str:
    return sections()[heading].partition("```yaml\n")[2].partition("```")[0]


def run_section(heading: str) -> dict[str, Any]:
    """Run a section of the page; gives the names it leaves."""
    found = blocks(heading)
    for block in found:
        block.evaluate()
    return found[0].namespace


def assert_said(error: object) -> None:
    """Check that the page quotes an error, whatever its line breaks."""
    quoted, page = (re.sub(r"\s+", " ", text).strip() for text in (str(error), PAGE.read_text()))
    assert quoted in page
