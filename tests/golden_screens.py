"""Comparing a whole screen with the file that holds it."""

import os
from pathlib import Path

FOLDER = Path(__file__).with_name("golden")


def assert_screen(name, text):
    """Compare a text with `golden/<name>.txt`; DEVICEKIT_UPDATE_GOLDEN=1 writes it instead."""
    path = FOLDER / f"{name}.txt"
    lines = [line.rstrip() for line in text.splitlines()]
    found = "\n".join(lines) + "\n"
    if os.environ.get("DEVICEKIT_UPDATE_GOLDEN"):
        path.write_text(found)
    assert found == path.read_text(), f"the screen differs from {path}"
