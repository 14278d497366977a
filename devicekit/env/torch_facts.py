"""Asking torch in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from typing import Any

from devicekit.children import run_python
from devicekit.env._torch_child import MARK

__all__ = ["torch_facts"]

# Importing torch from a cold network disk takes a minute, and so do eight GPUs without persistence.
TIMEOUT_S = 180.0
_PROGRAM = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from devicekit.env._torch_child import main; main()"
)


def torch_facts() -> dict[str, Any]:
    """Return what the torch of this interpreter says about itself.

    Returns:
        The facts of `_torch_child.facts`; `{"missing": True}` without torch; with `import_error`
        when importing it failed or killed the process; with `failed` when it could not be asked.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError) as error:
        return {"missing": False, "import_error": f"{type(error).__name__}: {error}"}
    if spec is None:
        return {"missing": True, "import_error": "No module named 'torch'"}
    try:
        # Warnings are not findings, and where they are errors torch could not be imported.
        arguments = ["-W", "ignore", "-c", _PROGRAM, json.dumps(list(map(str, sys.path)))]
        done = run_python(arguments, timeout_s=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"torch did not answer within {TIMEOUT_S:g} s"}
    except OSError as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if lines:
        found = json.loads(lines[-1].removeprefix(MARK))
        assert isinstance(found, dict)
        return found
    said = done.stderr.strip().splitlines()
    return {"missing": False, "import_error": _death(done.returncode, said[-1] if said else "")}


def _death(code: int, said: str) -> str:
    """Describe how the process ended that imported torch."""
    if code >= 0:
        how = f"the process ended with status {code}"
    else:
        try:
            how = f"the process was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"the process was killed by signal {-code}"
    return f"{how}: {said}" if said else how
