"""What only an accelerator can tell: rates of copies, packing, overlap, races, and its tests.

    python benchmarks/gpu.py --out results.json      # under 6 minutes on one GPU
    python benchmarks/gpu.py --dry-run               # the same code on the simulated accelerator

Times are of the host clock with the device synchronised, the best of several rounds, all candidates
in turn within each round. A dry run checks that everything runs, and writes no measurement.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks.common import facts
from devicekit import compat, pack, pin_memory, prefetch_to_device, to_device, unpack
from devicekit.packing import pays

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 350  # s for all of it


class Bench:
    """The device, the sizes for it, and the results."""

    def __init__(self, device: torch.device, dry: bool) -> None:
        self.device = device
        self.dry = dry
        self.module: Any = torch.get_device_module(device)
        self.began = time.perf_counter()
        self.results: dict[str, Any] = {}
        self.before = 0  # bytes of device memory reserved at the last `clear`

    def left(self) -> float:
        return LIMIT - (time.perf_counter() - self.began)

    def wait(self) -> None:
        self.module.synchronize(self.device)

    def best(
        self, jobs: Mapping[str, Callable[[], object]], rounds: int
    ) -> dict[str, dict[str, float]]:
        """For each job, the least us until it returned and until the device was done."""
        rounds = 1 if self.dry else rounds
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for job in jobs.values():
            job()
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                for name, job in jobs.items():
                    self.wait()
                    start = time.perf_counter()
                    result = job()
                    returned = time.perf_counter()
                    self.wait()
                    times[name].append((returned - start, time.perf_counter() - start))
                    del result
        finally:
            gc.enable()
        return {
            name: {
                "host_us": round(min(host for host, _ in each) * 1e6, 2),
                "total_us": round(min(total for _, total in each) * 1e6, 2),
            }
            for name, each in times.items()
        }


# The machine ------------------------------------------------------------------------------------


def the_device(bench: Bench) -> dict[str, object]:
    query = "name,driver_version,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current"
    try:
        smi = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        smi = repr(error)
    return {"name": bench.module.get_device_name(bench.device), query: smi}


# Host to device -----------------------------------------------------------------------------------


def host_to_device(bench: Bench) -> dict[str, object]:
    """GB/s and the host's time per call, by size, kind of memory and blocking or not."""
    found: dict[str, object] = {}
    sizes = [256, 16 << 10, 256 << 10, 4 << 20, 64 << 20, 512 << 20]
    for size in sizes[:2] if bench.dry else sizes:
        repeat = max(1, min(200, (64 << 20) // size))
        target = torch.empty(size, dtype=torch.uint8, device=bench.device)
        pageable = torch.zeros(size, dtype=torch.uint8)
        pinned = pin_memory(pageable)
        assert pinned.is_pinned()
        jobs = {
            f"{kind} {'non_blocking' if how else 'blocking'}": copying(target, source, how, repeat)
            for kind, source in (("pageable", pageable), ("pinned", pinned))
            for how in (False, True)
        }
        for name, times in bench.best(jobs, rounds=7).items():
            total = times["total_us"] / repeat
            found[f"{size} {name}"] = {
                "us": round(total, 2),
                "host_us": round(times["host_us"] / repeat, 2),
                "GB_per_s": round(size / total / 1e3, 2),
            }
    return found


def copying(
    target: torch.Tensor, source: torch.Tensor, non_blocking: bool, repeat: int
) -> Callable[[], None]:
    def job() -> None:
        for _ in range(repeat):
            target.copy_(source, non_blocking=non_blocking)

    return job


# Packing ------------------------------------------------------------------------------------------


def packing(bench: Bench) -> dict[str, object]:
    """Many small tensors, one by one and as one buffer; and one large tensor."""
    device = bench.device
    found: dict[str, object] = {}
    cases = {
        "8 of 4 KB": [torch.randn(32, 32) for _ in range(8)],
        "64 of 16 KB": [torch.randn(64, 64) for _ in range(64)],
        "64 of 64 KB": [torch.randn(128, 128) for _ in range(64)],
        "1000 of 16 B": [torch.randn(4) for _ in range(1000)],
        "1000 of mixed shapes": [torch.randn(i % 5 + 1) for i in range(1000)],
        "10000 of 16 B": [torch.randn(4) for _ in range(10_000)],
        "one of 64 MB": [torch.randn(4096, 4096)],
    }
    if bench.dry:
        cases = {"8 of 4 KB": cases["8 of 4 KB"]}
    for name, tensors in cases.items():
        if bench.left() < 60 and not bench.dry:
            found[name] = "skipped: out of time"
            continue
        times: dict[str, object] = dict(bench.best(transfers(tensors, device), rounds=7))
        times["`pays` says"] = pays(len(tensors), sum(each.nbytes for each in tensors))
        found[name] = times
    return found


def transfers(
    tensors: list[torch.Tensor], device: torch.device
) -> dict[str, Callable[[], list[torch.Tensor]]]:
    pinned = pin_memory(tensors)
    packed = pack(tensors).pin_memory()
    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "loop, pageable": lambda: [each.to(device) for each in tensors],
        "loop, pinned": lambda: [each.to(device, None, True) for each in pinned],
        "to_device, pageable": lambda: to_device(tensors, device),
        "to_device, pinned": lambda: to_device(pinned, device),
        "pack, to, unpack": lambda: unpack(pack(tensors).to(device)),
        "pack, pin, to, unpack": lambda: unpack(pack(tensors).pin_memory().to(device)),
        "to, unpack (packed and pinned before)": lambda: unpack(packed.to(device)),
    }
    for name, way in ways.items():
        for moved, tensor in zip(way(), tensors, strict=True):
            assert torch.equal(moved.cpu(), tensor), name
    return ways


# Overlap ------------------------------------------------------------------------------------------


def blocking(batches: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    for batch in batches:
        yield batch.to(device)


def one_stream(batches: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    for batch in batches:
        yield batch.to(device, None, True)


def deeper(batches: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    return iter(prefetch_to_device(batches, device, depth=2))


Way = Callable[[Iterable[torch.Tensor], torch.device], Iterable[torch.Tensor]]
WAYS: dict[str, Way] = {
    "blocking": blocking,
    "one stream, non_blocking": one_stream,
    "prefetch_to_device": prefetch_to_device,
    "prefetch_to_device, depth 2": deeper,
}


def step_of(bench: Bench, ms: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step that keeps the device busy for about `ms`, and reads all of its batch."""
    size = 64 if bench.dry else 4096
    a = torch.randn(size, size, device=bench.device, dtype=torch.float32)
    if not bench.dry:
        a = a.to(torch.bfloat16)

    def multiply(times: int) -> None:
        for _ in range(times):
            a @ a

    multiply(3)
    bench.wait()
    start = time.perf_counter()
    multiply(20)
    bench.wait()
    each = (time.perf_counter() - start) / 20
    times = 1 if bench.dry else max(1, round(ms / 1e3 / each))

    def step(batch: torch.Tensor) -> torch.Tensor:
        multiply(times)
        return batch.view(-1)[:1024].sum()

    return step


def overlap(bench: Bench) -> dict[str, object]:
    """How near a loop with copies comes to the slower of computation and copy alone."""
    device = bench.device
    found: dict[str, object] = {}
    count = 4 if bench.dry else 60
    step = step_of(bench, ms=4.0)
    resident = torch.zeros(1 << 20, device=device)

    def seconds(batches: Iterable[torch.Tensor], item: bool) -> float:
        bench.wait()
        start = time.perf_counter()
        for batch in batches:
            result = step(batch)
            if item:
                result.item()
        bench.wait()
        return (time.perf_counter() - start) / count

    compute = min(seconds([resident] * count, item=False) for _ in range(3))
    rate = copy_rate(bench)
    for ratio in (0.5,) if bench.dry else (0.25, 0.5, 0.9, 1.5):
        nbytes = 1 << 16 if bench.dry else max(1 << 20, int(ratio * compute * rate) >> 12 << 12)
        sources = [pin_memory(torch.zeros(nbytes, dtype=torch.uint8)) for _ in range(4)]
        target = torch.empty_like(sources[0], device=device)
        copy = bench.best({"copy": copying(target, sources[0], True, 1)}, 9)
        copy_time = copy["copy"]["total_us"] / 1e6
        bound = max(compute, copy_time)
        for name, way in WAYS.items():
            for item in (False, True):
                if bench.left() < 75 and not bench.dry:
                    continue
                clear(bench)
                taken = seconds(way((sources[i % 4] for i in range(count)), device), item)
                hidden = (compute + copy_time - taken) / min(compute, copy_time)
                found[f"copy/compute {ratio}, {name}{', item()' if item else ''}"] = {
                    "step_ms": round(taken * 1e3, 3),
                    "compute_ms": round(compute * 1e3, 3),
                    "copy_ms": round(copy_time * 1e3, 3),
                    "efficiency": round(bound / taken, 3),
                    "hidden": round(hidden, 3),
                    "reserved_in_batches": round(reserved(bench) / nbytes, 2),
                }
    return found


def copy_rate(bench: Bench) -> float:
    """Bytes per second from pinned memory."""
    source = pin_memory(torch.zeros(1 << 16 if bench.dry else 256 << 20, dtype=torch.uint8))
    target = torch.empty_like(source, device=bench.device)
    times = bench.best({"copy": lambda: target.copy_(source, non_blocking=True)}, rounds=5)
    return source.nbytes / (times["copy"]["total_us"] / 1e6)


def clear(bench: Bench) -> None:
    gc.collect()
    bench.module.empty_cache()
    bench.module.reset_peak_memory_stats(bench.device)
    bench.before = bench.module.memory_reserved(bench.device)


def reserved(bench: Bench) -> float:
    """Bytes of device memory that the loop needed at its peak beyond what was there before."""
    peak = bench.module.max_memory_reserved(bench.device)
    return float(peak - bench.before)


# Races --------------------------------------------------------------------------------------------


def unordered(batches: Iterable[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """A prefetcher whose side stream does not wait for the consumer, to see the check see it."""
    module: Any = torch.get_device_module(device)
    side, ready = module.Stream(device=device), None
    for batch in batches:
        with module.stream(side):
            following = batch.to(device, None, True)
        if ready is not None:
            yield ready
        module.current_stream(device).wait_stream(side)
        ready = following
        del following
    if ready is not None:
        yield ready


def races(bench: Bench) -> dict[str, object]:
    """Wrong batches seen by a consumer that is late and drops each batch at once.

    Only `unordered` may show any; whether it does depends on the machine.
    """
    count, nbytes = (4, 1 << 12) if bench.dry else (60, 16 << 20)
    sources = [pin_memory(torch.full((nbytes,), i % 251, dtype=torch.uint8)) for i in range(count)]
    busy = step_of(bench, ms=2.0)
    ballast = torch.zeros(1024, device=bench.device)
    ways = {**WAYS, "without the wait (control)": unordered}
    found: dict[str, object] = {}
    for name, way in ways.items():
        wrong = torch.zeros((), dtype=torch.int64, device=bench.device)
        seen = 0
        for i, batch in enumerate(way(iter(sources), bench.device)):
            busy(ballast)
            wrong += (batch != i % 251).any()
            del batch
            seen += 1
        found[name] = {"batches": seen, "wrong": int(wrong.item())}
    for name in ("prefetch_to_device", "prefetch_to_device, depth 2"):
        assert found[name] == {"batches": count, "wrong": 0}, found
    return found


# Pinning ------------------------------------------------------------------------------------------

CONTEXTS = """
import torch
from devicekit import pin_memory
assert pin_memory(torch.ones(4)).is_pinned()
print([i for i in range(torch.cuda.device_count()) if torch._C._cuda_hasPrimaryContext(i)])
"""


def pinning(bench: Bench) -> dict[str, object]:
    """What torch does with memory that is not the ordinary dense tensor."""
    pinned = pin_memory(torch.arange(12.0).view(3, 4))
    found: dict[str, object] = {
        "a view of pinned memory is pinned": pinned[1:, 1:].is_pinned(),
        "pinning again returns the same tensor": pin_memory(pinned) is pinned,
        "an expanded tensor": pin_memory(torch.ones(3).expand(4, 3)).is_pinned(),
        "an empty tensor": pin_memory(torch.ones(0)).is_pinned(),
    }
    for name, tensor in (("coo", torch.eye(2).to_sparse()), ("expanded", torch.ones(1).expand(3))):
        try:
            found[f"torch's own pin_memory of {name}"] = repr(tensor.pin_memory().is_pinned())
        except (RuntimeError, NotImplementedError) as error:
            found[f"torch's own pin_memory of {name}"] = str(error).partition("\n")[0]
    if bench.device.type == "cuda" and not bench.dry:
        last = str(torch.cuda.device_count() - 1)
        run = subprocess.run(
            [sys.executable, "-c", CONTEXTS],
            env={**os.environ, "LOCAL_RANK": last, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        found[f"cards with a context after pinning at LOCAL_RANK={last}"] = (
            run.stdout or run.stderr
        ).strip()[-500:]
    return found


# The tests ----------------------------------------------------------------------------------------


def marked_tests(bench: Bench) -> dict[str, object]:
    """The tests marked `accelerator`; on a dry run, only that they can be collected."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "accelerator", "tests"]
        command += ["--collect-only"] if bench.dry else [f"--junitxml={report}"]
        run = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=max(30.0, bench.left() - 5),
        )
        if run.returncode not in (0, 5) or not (bench.dry or report.exists()):  # 5: no such test
            return {"failed": (run.stdout + run.stderr)[-3000:]}
        if bench.dry:
            return {"collected": True}
        suite = ElementTree.parse(report).getroot()[0]
        return {
            name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
        }


def rules(bench: Bench) -> dict[str, object]:
    """The simulated accelerator's rules against the real ones, if the comparison is there."""
    script = ROOT / "tests" / "simulate" / "compare_rules.py"
    if bench.dry or not script.exists():
        return {"skipped": "dry run" if bench.dry else f"no {script.relative_to(ROOT)}"}
    run = subprocess.run(
        [sys.executable, str(script), "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=max(30.0, bench.left() - 5),
    )
    if run.returncode:
        return {"failed": (run.stdout + run.stderr)[-3000:]}
    found: dict[str, object] = json.loads(run.stdout)
    return found


SECTIONS: dict[str, Callable[[Bench], dict[str, object]]] = {
    "device": the_device,
    "pinning": pinning,
    "races": races,
    "host_to_device": host_to_device,
    "packing": packing,
    "overlap": overlap,
    "tests": marked_tests,
    "rules": rules,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="on the simulated accelerator")
    parser.add_argument("--out", type=Path, help="the JSON file to write; default: only printed")
    options = parser.parse_args()
    if options.dry_run:
        from devicekit.testing import simulate

        with simulate("sim") as simulation:
            return report(Bench(simulation.devices[0], dry=True), options.out)
    device = compat.current_accelerator()
    if device is None or not torch.get_device_module(device).is_available():
        parser.error("there is no accelerator here; --dry-run needs none")
    return report(Bench(torch.device(device.type, 0), dry=False), options.out)


def report(bench: Bench, out: Path | None) -> int:
    failed = False
    for name, section in SECTIONS.items():
        began = time.perf_counter()
        if bench.left() < 10:
            bench.results[name] = {"skipped": "out of time"}
            continue
        try:
            found = section(bench)
        except Exception:  # not lost: it is in the report, and in the exit status
            found = {"failed": traceback.format_exc()}
        failed |= "failed" in found or bool(found.get("failures")) or bool(found.get("errors"))
        # A simulated device has no speed: of a dry run only the failures are kept.
        bench.results[name] = found if "failed" in found or not bench.dry else {"ran": True}
        print(f"{name}: {json.dumps(bench.results[name], indent=1)}", flush=True)
        if not bench.dry:
            bench.results[f"{name}, seconds"] = round(time.perf_counter() - began, 1)
        if out is not None:
            written = {**facts(), "dry_run": bench.dry, **bench.results}
            out.write_text(json.dumps(written, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
