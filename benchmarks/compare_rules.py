"""CUDA's rules for mixed devices, on a real GPU and on the simulation: prints where they differ.

    python benchmarks/compare_rules.py            # where there is a GPU; under three minutes
    python benchmarks/compare_rules.py --rehearse # without one: the simulation against itself

Two sets of calls: the mixes that `tests/simulate` says are refused or allowed, and for each
operator of PyTorch's database (`op_db`, needs `expecttest`) one call with each tensor left on the
CPU. Both are run in two fresh processes, one with the GPU as `cuda:0`, one with the simulation
under CUDA's name and the GPU hidden. A difference is printed with both answers; first lines that
differ in more than a pointer or a line number are printed as well. The result is filed in
`results/compare_rules.json`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests" / "simulate"


def main() -> None:
    rehearsal = "--rehearse" in sys.argv
    gpu = run("simulation" if rehearsal else "gpu")
    simulation = run("simulation")
    print(f"GPU: {gpu['device']}, torch {gpu['torch']}; simulation: torch {simulation['torch']}")
    differences = [
        {"call": call, "gpu": there, "simulation": simulation["answers"].get(call, "not run")}
        for call, there in gpu["answers"].items()
    ]
    verdicts = [d for d in differences if verdict(d["gpu"]) != verdict(d["simulation"])]
    wordings = [d for d in differences if d not in verdicts and d["gpu"] != d["simulation"]]
    for title, found in (("refused by one only", verdicts), ("other words", wordings)):
        print(f"\n{len(found)} of {len(differences)} calls: {title}")
        for d in found:
            print(f"  {d['call']}\n    GPU:        {d['gpu']}\n    simulation: {d['simulation']}")
    if rehearsal:
        return
    where = {"device": gpu["device"], "torch": gpu["torch"], "calls": len(differences)}
    result = {"where": where, "verdicts": verdicts, "wordings": wordings}
    (HERE / "results" / "compare_rules.json").write_text(json.dumps(result, indent=1) + "\n")


def verdict(answer: str) -> str:
    return "allowed" if answer == "allowed" else "refused"


def run(side: str) -> dict[str, Any]:
    """Return the answers of one side, from a process of its own."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}"}
    if side == "simulation":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, __file__, f"--side={side}"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------ one side


def answer(side: str) -> None:
    """Print the answers of this process as JSON."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if side == "gpu":
        if not torch.cuda.is_available():
            sys.exit("no GPU here: torch.cuda.is_available() is False")
        name = torch.cuda.get_device_name()
    else:
        from devicekit.testing import simulate

        simulate("cuda")
        name = "simulated"
    answers = {**from_tests(), **from_database()}
    print(json.dumps({"device": name, "torch": torch.__version__, "answers": answers}))


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def from_tests() -> dict[str, str]:
    sys.path.insert(0, str(TESTS))
    opinfo = load(HERE / "opinfo.py")
    answers = {}
    for file, table in (("test_refused", "REFUSED"), ("test_allowed", "ALLOWED")):
        module = load(TESTS / f"{file}.py")
        module.DEVICE = "cuda:0"
        for name, call in getattr(module, table).items():
            answers[f"{table.lower()}: {name}"] = opinfo.outcome_of(call)
    return answers


def from_database() -> dict[str, str]:
    import torch

    opinfo = sys.modules["opinfo"]
    answers = {}
    for info in opinfo.op_db:
        if torch.float32 not in info.dtypesIfCUDA or torch.float32 not in info.dtypes:
            continue
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        try:
            samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))[:4]
        except Exception:  # a sample that the CPU cannot make says nothing about devices
            continue
        for mixed in opinfo.mixed(info, samples, "cuda:0"):
            answers[f"{name}: tensor {mixed['tensor']} on the CPU"] = mixed["result"]
    return answers


if __name__ == "__main__":
    side = [a.removeprefix("--side=") for a in sys.argv if a.startswith("--side=")]
    if side:
        answer(side[0])
    else:
        main()
