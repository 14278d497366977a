"""Runs the core suite under several Pythons and files which of them pass.

    python tests/matrix/run.py PYTHON [PYTHON ...]

Each PYTHON is an interpreter with one version of torch and the packages of the `test` extra. The
result is benchmarks/results/matrix.json, with a table in matrix.md; what was filed for other
versions stays in it. Without any PYTHON only the table is written anew.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "matrix.json"
SUITE = ["tests", "-m", "not slow and not ecosystem", "--ignore=tests/ecosystem"]

FACTS = """
import importlib.metadata, json, platform, torch
try:
    importlib.metadata.version("torch-devicekit")
    installed = True
except importlib.metadata.PackageNotFoundError:
    installed = False
print(json.dumps({
    "python": platform.python_version(),
    "torch": torch.__version__,
    "build": "CUDA " + torch.version.cuda if torch.version.cuda else "CPU",
    "cuda_available": torch.cuda.is_available(),
    "installed": installed,
}))
"""


def run(python: str) -> dict[str, object]:
    """Runs the suite once and returns versions, counts and the names of what failed."""
    facts = json.loads(subprocess.check_output([python, "-c", FACTS], text=True))
    plugin = [] if facts.pop("installed") else ["-p", "devicekit.testing.plugin"]
    command = [python, "-m", "pytest", "-q", "-n", "2", *plugin, *SUITE]
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
        **facts,
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
    filed = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    green = True
    for python in sys.argv[1:]:
        result = run(python)
        green = green and result["exit_code"] == 0
        print(json.dumps(result), flush=True)
        key = ("python", "torch")
        filed = [old for old in filed if [old[k] for k in key] != [result[k] for k in key]]
        filed.append(result)
        filed.sort(key=lambda old: (old["torch"], old["python"]))
        command = "python tests/matrix/run.py PYTHON ..."
        RESULT.write_text(json.dumps({"command": command, "suite": SUITE, "runs": filed}, indent=1))
    RESULT.with_suffix(".md").write_text(table(filed))
    return 0 if green else 1


def table(runs: list[dict[str, object]]) -> str:
    """The runs as a Markdown table."""
    rows = [
        "| PyTorch | build | Python | passed | failed | skipped | date |",
        "|---|---|---|---|---|---|---|",
    ]
    keys = ("torch", "build", "python", "passed", "failed", "skipped", "date")
    rows += ["| " + " | ".join(str(run[key]) for key in keys) + " |" for run in runs]
    return "\n".join([*rows, ""])


if __name__ == "__main__":
    sys.exit(main())
