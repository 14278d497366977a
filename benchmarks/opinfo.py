"""PyTorch's own operator database on the simulated accelerator, next to the CPU.

    python benchmarks/opinfo.py              # all operators, about a minute; needs `expecttest`
    python benchmarks/opinfo.py add linalg   # those whose name contains one of the words
    python benchmarks/opinfo.py --device cuda  # a real GPU instead of the simulation

For each operator of `op_db` with float32, up to four samples:

- values and gradients equal the CPU's;
- with one tensor after the other left on the CPU, the call raises or not (`mixed`), to be compared
  with a real GPU by `compare_rules.py`.

The result is written to `results/opinfo-<device>.json`. Each operator runs in a forked process, so
that a crash is a result too.
"""

import argparse
import json
import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import RESULTS, write
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from devicekit.testing import simulate

# Their values are random, so only the device and the shape can be compared.
RANDOM = frozenset(
    [
        "bernoulli",
        "bernoulli_",
        "cauchy",
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "new_empty",
        "new_empty_strided",
        "nn.functional.alpha_dropout",
        "nn.functional.dropout",
        "nn.functional.dropout2d",
        "nn.functional.dropout3d",
        "nn.functional.feature_alpha_dropout",
        "nn.functional.fractional_max_pool2d",
        "nn.functional.fractional_max_pool3d",
        "nn.functional.multi_head_attention_forward",
        "nn.functional.rrelu",
        "nn.functional.scaled_dot_product_attention",
        "normal",
        "pca_lowrank",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "svd_lowrank",
        "uniform",
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="sim")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.device != "cuda":
        simulate(options.device)
    # A process that is forked after a GPU was used cannot use it.
    run = in_fork if options.device != "cuda" else directly
    results = {}
    for info in op_db:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        listed = torch.float32 in info.dtypesIfCUDA and torch.float32 in info.dtypes
        if not listed or (options.words and not any(word in name for word in options.words)):
            continue
        results[name] = run(lambda info=info: check(info, f"{options.device}:0"))
    print(report(results))
    if not options.words:
        name = f"opinfo-{options.device}"
        write(name, {"device": options.device, "operators": results})
        (RESULTS / f"{name}.md").write_text(report(results))


def report(results: dict[str, Any]) -> str:
    """The counts as Markdown, and each operator that was not right."""
    values = Counter(r["values"].split(":")[0] for r in results.values())
    mixed = Counter(m["result"].split(":")[0] for r in results.values() for m in r["mixed"])
    lines = [f"| of {len(results)} operators, values and gradients | |", "|---|---|"]
    lines += [f"| {outcome} | {count} |" for outcome, count in values.most_common()]
    lines += [f"| of {mixed.total()} calls with one tensor left on the CPU | |"]
    lines += [f"| {outcome} | {count} |" for outcome, count in mixed.most_common()]
    for name, result in results.items():
        if not result["values"].startswith(("equal", "no sample")):
            lines.append(f"| `{name}` | {result['values'].replace('|', '/')} |")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------ one operator


def check(info: Any, device: str) -> dict[str, Any]:
    try:
        differentiable = info.supports_autograd
        samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=differentiable))[:4]
    except Exception as error:  # a sample that the CPU cannot make says nothing about the device
        return {"values": f"no sample: {error}"[:120], "mixed": []}
    found: dict[str, Any] = {"values": "equal", "mixed": []}
    try:
        found["mixed"] += mixed(info, samples, device)
        for sample in samples:
            compare(info, sample, device)
    except Exception as error:  # whatever it is, it is the result
        found["values"] = f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
    return found


def compare(info: Any, sample: Any, device: str) -> None:
    """Check values and gradients of one call against the CPU's."""
    here = ((sample.input, *sample.args), dict(sample.kwargs))
    for x in tree_leaves(here):  # samples share tensors
        if isinstance(x, torch.Tensor):
            x.grad = None
    there = moved(here, device)
    torch.manual_seed(0)
    try:
        expected = tree_leaves(info.op(*here[0], **here[1]))
    except Exception:  # what the CPU cannot do either is no test
        return
    torch.manual_seed(0)
    got = tree_leaves(info.op(*there[0], **there[1]))
    for a, b in zip(got, expected, strict=True):
        if isinstance(b, torch.Tensor):
            assert a.device == torch.device(device), f"on {a.device}"
            assert a.shape == b.shape, f"shape {list(a.shape)}, not {list(b.shape)}"
            if info.name not in RANDOM:
                torch.testing.assert_close(
                    a.detach().cpu(), b.detach(), rtol=1e-3, atol=1e-3, equal_nan=True
                )
    if info.supports_autograd and info.name not in RANDOM:
        compare_gradients(expected, got, tree_leaves(here), tree_leaves(there), device)


def compare_gradients(expected: Any, got: Any, here: Any, there: Any, device: str) -> None:
    losses = [loss(expected), loss(got)]
    if losses[0] is None:
        return
    try:
        losses[0].backward()
    except Exception:  # as above
        return
    losses[1].backward()
    for x, y in zip(here, there, strict=True):
        if isinstance(x, torch.Tensor) and x.grad is not None:
            assert y.grad.device == torch.device(device), f"gradient on {y.grad.device}"
            torch.testing.assert_close(
                y.grad.cpu(), x.grad, rtol=1e-2, atol=1e-2, equal_nan=True, check_layout=True
            )


def loss(results: list[Any]) -> torch.Tensor | None:
    parts = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    return sum((p.abs() if p.is_complex() else p).sum() for p in parts) if parts else None


def moved(value: Any, device: str) -> Any:
    """Return the arguments on a device, each distinct tensor moved once, and named devices too."""
    done: dict[int, torch.Tensor] = {}

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if id(x) not in done:
                done[id(x)] = x.detach().to(device).requires_grad_(x.requires_grad)
            return done[id(x)]
        return device if x == "cpu" or isinstance(x, torch.device) else x

    return tree_map(move, value)


def mixed(info: Any, samples: list[Any], device: str) -> Iterator[dict[str, Any]]:
    """Call the first sample of two or more tensors, with one after the other left on the CPU."""
    for sample in samples:
        leaves, spec = tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        if len(places) < 2:
            continue
        for left in places:
            args, kwargs = tree_unflatten(
                [
                    x if i not in places else x.detach().to("cpu" if i == left else device)
                    for i, x in enumerate(leaves)
                ],
                spec,
            )
            outcome = outcome_of(lambda args=args, kwargs=kwargs: info.op(*args, **kwargs))
            yield {"tensor": places.index(left), "shape": [*leaves[left].shape], "result": outcome}
        return


def outcome_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except NotImplementedError as error:
        return f"not implemented: {error}"[:160]
    except Exception as error:  # any error is an answer; its text tells which
        return f"raised: {type(error).__name__}: {error}".splitlines()[0][:160]
    return "allowed"


# ------------------------------------------------------------------ processes


def directly(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return call()


def in_fork(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a call returns in a forked process, or that the process died."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        signal.alarm(120)
        with os.fdopen(write, "w") as pipe:
            json.dump(call(), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    if text and status == 0:
        return json.loads(text)
    return {"values": f"crash: status {status}", "mixed": []}


if __name__ == "__main__":
    main()
