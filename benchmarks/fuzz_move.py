"""A long run of to_device over random structures, with what hypothesis checks on fewer.

    nice -n 15 python benchmarks/fuzz_move.py 1000000 2    # structures, processes

For each structure: every tensor moved, equal skeleton, the same tensors and containers shared as
before, the input untouched, the same object back where nothing moved, and the quick way agrees with
the walker. The first structure that fails is reported with its seed.
"""

import json
import random
import sys
import time
from collections import Counter
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any

import torch
from common import RESULTS, facts

from devicekit import find_tensors, to_device
from devicekit.testing import assert_same
from devicekit.testing.strategies import grow
from devicekit.tree import map_tensors
from devicekit.tree.containers import container_of


def parts(data: Any) -> list[Any]:
    """All tensors and containers, in the order of the walk, each occurrence."""
    found, seen, stack = [], set(), [data]
    while stack:
        x = stack.pop()
        container = container_of(type(x))
        if container is None and not isinstance(x, torch.Tensor):
            continue
        found.append(x)
        if id(x) in seen or container is None:
            continue
        seen.add(id(x))
        if isinstance(x, MappingProxyType):  # its child would be a new copy at each look
            stack.extend(x.values())
        # The order of a set is that of the addresses of its elements, which are others after.
        elif not isinstance(x, set | frozenset):
            stack.extend(container.children(x))
    return found


def sharing(data: Any) -> list[tuple[str, int]]:
    """For each part, its type and the number of its first occurrence."""
    first: dict[int, int] = {}
    kept = parts(data)
    return [(type(x).__name__, first.setdefault(id(x), len(first))) for x in kept]


def check(seed: int, kinds: Counter[str]) -> int:
    """Check one structure; returns the number of its tensors."""
    choices = random.Random(seed)
    data = grow(lambda n: int(choices.random() * n), cycles=True)
    before = parts(data)
    kinds.update({type(x).__name__ for x in before})
    tensors = [x for _, x in find_tensors(data)]

    moved = to_device(data, "meta")

    assert all(x.is_meta for _, x in find_tensors(moved)), "a tensor was left behind"
    assert_same(moved, data)
    assert sharing(moved) == sharing(data), "what was shared is not, or the reverse"
    after = parts(data)
    assert len(after) == len(before), "the input was changed"
    assert all(a is b for a, b in zip(after, before, strict=True)), "the input was changed"
    assert all(x.is_cpu for x in tensors), "the input was changed"
    assert to_device(data, "cpu") is data, "nothing to move, and yet another object"
    assert to_device(moved, "meta") is moved, "nothing to move, and yet another object"
    assert_same(map_tensors(data, lambda x: x.to("meta")), moved)
    return len(tensors)


def check_range(seeds: range) -> tuple[int, Counter[str]]:
    """Check the structures of these seeds; returns how many tensors and what kinds were in them."""
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    tensors = 0
    for seed in seeds:
        try:
            tensors += check(seed, kinds)
        except Exception as error:
            raise AssertionError(f"structure {seed} fails: {error}") from error
    return tensors, kinds


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    description = facts()  # now: the commit that is checked
    start = time.perf_counter()
    ranges = [range(first, min(first + 5000, count)) for first in range(0, count, 5000)]
    kinds: Counter[str] = Counter()
    tensors = 0
    with get_context("spawn").Pool(processes) as pool:
        for done, (found, more) in enumerate(pool.imap_unordered(check_range, ranges), 1):
            tensors += found
            kinds += more
            print(f"{done} of {len(ranges)} blocks", flush=True)
    results = {
        "structures": count,
        "failures": 0,
        "tensors": tensors,
        "seconds": round(time.perf_counter() - start),
        "processes": processes,
        "structures_with": dict(kinds.most_common()),
    }
    print(results)
    path = RESULTS / "fuzz_move.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**description, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
