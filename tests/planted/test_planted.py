"""Small programs with a planted device bug, and correct ones that mix devices.

A program says in comments at its head what the error must say:

- `culprit`: the names of the tensors that are off, as the report calls them, with `; ` between;
- `says`: words that the report must hold;
- `cpu: no`: the program makes no sense on the CPU;
- `same: no`: the mended program draws other numbers on the device than on the CPU;
- `fix: several`: no single line mends it.
"""

import re
import traceback
import types
import warnings
from pathlib import Path

import pytest
import torch

import devicekit
from devicekit.testing import Simulation

HERE = Path(__file__).parent
BUGS = sorted((HERE / "bugs").glob("*.py"))
CORRECT = sorted((HERE / "correct").glob("*.py"))

FIX = re.compile(
    r"(?P<code>.*?)(?:  # (?P<word>before|after|instead of) lines? (?P<first>\d+)"
    r"(?:-(?P<last>\d+))?(?: of (?P<file>\S+))?)?"
)


def load(path: Path) -> types.ModuleType:
    """Run a program's top level, as `import` would."""
    program = types.ModuleType(path.stem)
    exec(compile(path.read_text(), str(path), "exec"), program.__dict__)
    return program


def expectations(path: Path) -> dict[str, str]:
    head = path.read_text().partition("import")[0]
    return dict(re.findall(r"^# (culprit|says|cpu|same|fix): (.+)$", head, flags=re.M))


def fixes_of(message: str) -> list[str]:
    _, found, block = message.rpartition("\n\n  fix: ")
    return [line.strip() for line in block.splitlines()] if found else []


def apply(source: str, fix: str, failed_at: int) -> str:
    """Type a fix into a program."""
    match = FIX.fullmatch(fix)
    assert match is not None
    lines = source.splitlines()
    word = match["word"] or "before"
    first = int(match["first"] or failed_at)
    last = int(match["last"] or first)
    old = lines[first - 1]
    new = old[: len(old) - len(old.lstrip())] + match["code"]
    if word == "instead of":
        lines[first - 1 : last] = [new]
    else:
        position = first - 1 if word == "before" else first
        lines.insert(position, new)
    return "\n".join(lines) + "\n"


def line_in(path: Path, error: BaseException) -> int:
    """The innermost line of a program in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.lineno or 0 for frame in frames if frame.filename == str(path)][-1]


@pytest.mark.parametrize("path", BUGS, ids=lambda path: path.stem)
def test_planted_bug_is_named_and_mended(
    path: Path, tmp_path: Path, simulated_accelerator: Simulation
) -> None:
    expected = expectations(path)
    on_cpu = load(path).main("cpu") if expected.get("cpu") != "no" else None

    with pytest.raises(devicekit.DeviceMismatchError) as caught:
        load(path).main("sim:0")

    message = str(caught.value)
    for culprit in expected["culprit"].split("; "):
        row = rf"^  \S+ +{re.escape(culprit)}(  |$)"
        named = re.search(row, message, flags=re.M) or f"`{culprit}`" in message
        assert named, message
    assert expected["says"] in message, message
    if expected.get("fix") == "several":
        return

    mended = tmp_path / path.name
    source = path.read_text()
    for fix in sorted(fixes_of(message), key=lambda fix: "before" in fix):
        source = apply(source, fix, line_in(path, caught.value))
    mended.write_text(source)
    result = load(mended).main("sim:0")
    if on_cpu is not None and expected.get("same") != "no":
        torch.testing.assert_close(result.cpu(), on_cpu)


@pytest.mark.parametrize("path", CORRECT, ids=lambda path: path.stem)
def test_correct_program_is_left_alone(path: Path, simulated_accelerator: Simulation) -> None:
    on_cpu = load(path).main("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_device = load(path).main("sim:0")
    torch.testing.assert_close(
        devicekit.to_device(on_device, "cpu"), devicekit.to_device(on_cpu, "cpu")
    )


def test_there_are_enough_programs() -> None:
    assert len(BUGS) >= 60
    assert len(CORRECT) >= 40
