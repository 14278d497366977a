"""A translated page shows the code of the English page, so that it cannot drift."""

import doctest
import io
import re
import tokenize
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("first-lesson.md", "quickstart.md")
LANGUAGES = ("ja", "zh")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def without_comments(code: str) -> str:
    """The code as it is, less its comments and the lines that hold nothing else."""
    lines = code.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() or "#"
    return "\n".join(line for line in lines if line != "#")


def code_of(block: str) -> list[object]:
    """What a block runs and expects: one text, or the examples of a session with `>>>`."""
    examples = doctest.DocTestParser().get_examples(block)
    if not examples:
        return [without_comments(block)]
    return [(without_comments(one.source), one.want, one.options) for one in examples]


def blocks(text: str) -> list[tuple[str, list[object]]]:
    """Each fenced block of a page: its language and code, without comments where it is Python."""
    return [
        (language, code_of(body) if language == "python" else [body])
        for language, body in BLOCK.findall(text)
    ]


def links(text: str) -> set[str]:
    return {Path(target).name for target in re.findall(r"\]\(([^)#]+\.md)\)", text)}


def headings(text: str) -> list[str]:
    """The levels of the headings, in order."""
    return re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE)


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=LANGUAGES)
def pair(request: pytest.FixtureRequest, page: str) -> tuple[str, str]:
    """The English page and one translation of it."""
    return (DOCS / page).read_text("utf-8"), (DOCS / request.param / page).read_text("utf-8")


def test_code_is_that_of_the_english_page(pair: tuple[str, str]) -> None:
    english, translated = pair
    assert any(language == "python" for language, _ in blocks(english))
    assert blocks(translated) == blocks(english)


def test_no_block_escapes_the_comparison(pair: tuple[str, str]) -> None:
    for text in pair:
        assert text.count("```") == 2 * len(blocks(text))
        assert "skip:" not in text  # sybil would leave the next block out


def test_structure_is_that_of_the_english_page(pair: tuple[str, str]) -> None:
    english, translated = pair
    assert headings(translated) == headings(english)
    assert links(english) <= links(translated)


def test_every_translation_is_checked_and_linked() -> None:
    found = {str(path.relative_to(DOCS)) for path in DOCS.glob("[a-z][a-z]/*.md")}
    assert found == {f"{language}/{page}" for language in LANGUAGES for page in PAGES}
    index = (DOCS / "index.md").read_text("utf-8")
    for page in found:
        assert f"\n{page.removesuffix('.md')}\n" in index


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("loader = DataLoader(x, batch_size=16)", "loader = DataLoader(x, batch_size=8)"),
        ("x = '# one'", "x = '# two'"),
        ("a = 1\n\nb = 2", "a = 1\nb = 2"),
        (">>> a  # one\n1\n", ">>> a  # one\n2\n"),
        (">>> a\n1\n", ">>> a  # doctest: +SKIP\n1\n"),
        (">>> a\n1\n>>> b\n2\n", ">>> a\n1\n"),
    ],
    ids=["argument", "string", "blank-line", "output", "directive", "example"],
)
def test_a_change_of_code_is_seen(before: str, after: str) -> None:
    assert code_of(before) != code_of(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = 1  # one", "a = 1       # eins"),
        ("# one\na = '# 1'", "a = '# 1'"),
        (">>> a = 1  # one\n>>> a\n1\n", ">>> a = 1    # eins\n>>> a\n1\n"),
    ],
    ids=["behind", "own-line", "session"],
)
def test_a_change_of_comment_is_not(before: str, after: str) -> None:
    assert code_of(before) == code_of(after)
