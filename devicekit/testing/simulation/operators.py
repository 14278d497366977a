"""The operator table inside the torch wheel: which check CUDA's kernel of each overload makes.

torchgen generates CUDA's wrappers from `native_functions.yaml`, which the wheel carries
(torchgen/packaged/ATen/native), so the rules here are those of the installed version:

- `device_check: ExactSame`, the default: the wrapper demands one device of all tensor arguments.
- `device_check: NoCheck   # TensorIterator`: the iterator checks, and lets one 0-dim CPU input
  pass.
- `device_check: NoCheck` alone: the kernel checks by hand; those are in `rules`.
"""

import functools
import re
from dataclasses import dataclass
from importlib.resources import files

__all__ = ["Operator", "table"]


@dataclass(frozen=True, slots=True)
class Operator:
    """One overload, as CUDA implements it."""

    check: str
    """`exact`, `iterator`, `by hand`, or `none`: no kernel of its own, so no generated check."""
    structured: bool
    on_cuda: bool
    """Whether CUDA has a kernel of its own, that is: nothing is decomposed before it."""
    on_sparse_cuda: bool
    """Whether it has one for sparse COO tensors."""


@functools.cache
def table() -> dict[str, Operator]:
    """Return the operators of the installed torch by `name.overload`, parsed in about 30 ms."""
    path = files("torchgen") / "packaged/ATen/native/native_functions.yaml"
    entries = _parse(path.read_text(encoding="utf-8"))
    return {name: _operator(entry, entries) for name, entry in entries.items()}


def _parse(text: str) -> dict[str, dict[str, str]]:
    """Read the fields that matter, without PyYAML, which torch does not depend on."""
    entries: dict[str, dict[str, str]] = {}
    entry: dict[str, str] = {}
    in_dispatch = False
    for line in text.splitlines():
        if line.startswith("- func:"):
            name = re.match(r"- func:\s*([\w.]+)\(", line)
            entry = entries[name.group(1) if name else line] = {"dispatch": ""}
            in_dispatch = False
        elif line.startswith("  dispatch:"):
            in_dispatch = True
        elif in_dispatch and line.startswith("    "):
            entry["dispatch"] += line.strip() + "\n"
        else:
            in_dispatch = False
            field = re.match(r"  (device_check|structured\w*):\s*(.*)", line)
            if field:
                entry[field.group(1)] = field.group(2)
    return entries


def _operator(entry: dict[str, str], entries: dict[str, dict[str, str]]) -> Operator:
    # `add.Tensor` is implemented by `add.out`, and inherits its kernels.
    kernel = entries.get(entry.get("structured_delegate", ""), entry)
    on_cuda = bool(re.search(r"(^|[\s,])CUDA\b", kernel["dispatch"])) or (
        "structured_inherits" in kernel
    )
    structured = "structured_delegate" in entry or "structured" in entry
    hints = (
        kernel.get("structured_inherits", ""),
        entry.get("device_check", ""),
        kernel.get("device_check", ""),
    )
    if not entry.get("device_check", "").startswith("NoCheck"):
        decomposed = not on_cuda and "Composite" in entry["dispatch"]
        check = "none" if decomposed else "exact"
    elif any("TensorIterator" in hint for hint in hints):
        check = "iterator"
    else:
        check = "by hand"
    return Operator(check, structured, on_cuda, "SparseCUDA" in kernel["dispatch"])
