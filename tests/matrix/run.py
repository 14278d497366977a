"""Runs the core suite under several Pythons and files which of them pass.

    python tests/matrix/run.py PYTHON [PYTHON ...]
    python tests/matrix/run.py --only torchvision PYTHON

Each PYTHON is an interpreter with one version of torch and the packages of the `test` extra. Where
torchvision can be imported, its tests run as well. The result is benchmarks/results/matrix.json,
with a table in matrix.md; what was filed for other versions, and for a suite that is left out by
`--only`, stays in it. Without any PYTHON only the table is written anew.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "matrix.json"
SUITES = {
    "core": ["tests", "-m", "not slow and not ecosystem", "--ignore=tests/ecosystem"],
    "torchvision": ["tests/ecosystem/test_torchvision.py"],
}

FACTS = """
import importlib.metadata, json, platform, torch
try:
    importlib.metadata.version("torch-devicekit")
    installed = True
except importlib.metadata.PackageNotFoundError:
    installed = False
try:
    from torchvision import __version__ as torchvision
except (ImportError, RuntimeError):  # not there, or built for another torch
    torchvision = None
print(json.dumps({
    "python": platform.python_version(),
    "torch": torch.__version__,
    "build": "CUDA " + torch.version.cuda if torch.version.cuda else "CPU",
    "cuda_available": torch.cuda.is_available(),
    "installed": installed,
    "torchvision": torchvision,
}))
"""


def run(python: str, suite: str, installed: bool) -> dict[str, Any]:
    """Runs a suite once and returns counts and the names of what failed."""
    plugin = [] if installed else ["-p", "devicekit.testing.plugin"]
    command = [python, "-m", "pytest", "-q", "-n", "2", *plugin, *SUITES[suite]]
    start = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    last = [line for line in done.stdout.splitlines() if re.search(r" in [\d.]+s", line)][-1:]
    for number, outcome in re.findall(r"(\d+) (passed|failed|error|skipped)", "".join(last)):
        counts[outcome] = int(number)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if not last:
        failed.append((done.stdout + done.stderr)[-300:])
    return {
        **counts,
        "exit_code": done.returncode,
        "seconds": round(time.perf_counter() - start),
        "date": time.strftime("%Y-%m-%d"),
        "commit": subprocess.check_output(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True
        ).strip(),
        "failed_tests": failed,
    }


def main() -> int:
    """Runs each interpreter, prints a line for it, and files all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON")
    parser.add_argument("--only", choices=SUITES)
    arguments = parser.parse_args()
    filed = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    green = True
    for python in arguments.pythons:
        facts = json.loads(subprocess.check_output([python, "-c", FACTS], text=True))
        installed, vision = facts.pop("installed"), facts.pop("torchvision")
        key = ("python", "torch")
        old = [row for row in filed if [row[k] for k in key] == [facts[k] for k in key]]
        result = {**(old[0] if old else {}), **facts}
        if arguments.only != "torchvision":
            result |= run(python, "core", installed)
            green = green and result["exit_code"] == 0
        if arguments.only != "core" and vision is not None:
            done = run(python, "torchvision", installed)
            green = green and done["exit_code"] == 0
            result["torchvision"] = {"version": vision, **done}
        print(json.dumps(result), flush=True)
        filed = [row for row in filed if row not in old] + [result]
        filed.sort(key=lambda row: (row["torch"], row["python"]))
        command = "python tests/matrix/run.py PYTHON ..."
        RESULT.write_text(
            json.dumps({"command": command, "suites": SUITES, "runs": filed}, indent=1)
        )
    RESULT.with_suffix(".md").write_text(table(filed))
    return 0 if green else 1


def table(runs: list[dict[str, Any]]) -> str:
    """The runs as a Markdown table."""
    rows = [
        "| PyTorch | build | Python | passed | failed | skipped | date | with torchvision |",
        "|---|---|---|---|---|---|---|---|",
    ]
    keys = ("torch", "build", "python", "passed", "failed", "skipped", "date")
    rows += [
        "| " + " | ".join([*(str(row.get(key, "-")) for key in keys), with_torchvision(row)]) + " |"
        for row in runs
    ]
    return "\n".join([*rows, ""])


def with_torchvision(row: dict[str, Any]) -> str:
    """How its tests went, or a dash where they were not run."""
    done = row.get("torchvision")
    if done is None:
        return "-"
    return f"{done['version']}: {done['passed']} passed, {done['failed'] + done['error']} failed"


if __name__ == "__main__":
    sys.exit(main())
