"""What Dynamo keeps of torch's functions, which it may have taken while they were replaced."""

import sys
from typing import Any

from devicekit.testing.simulation import private
from devicekit.testing.simulation.patching import Patches

__all__ = ["install"]


def install(patches: Patches) -> None:
    """Let Dynamo see torch's own functions again when everything is put back.

    It builds its tables of functions on first use and by identity, so that `torch.ones`, put back,
    would be a builtin that it has never heard of.

    Args:
        patches: Where each replacement is noted.
    """
    patches.later(lambda: _forget(patches))


def _forget(patches: Patches) -> None:
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return
    rules.clear_lru_cache()
    # By identity: not everything that is replaced can be hashed. What was replaced twice is what it
    # was at first.
    own: dict[int, Any] = {}
    for value, before in patches.replaced():
        if callable(value):
            own[id(value)] = own.get(id(before), before)
    for module, name in private.DYNAMO_TABLES:
        table = getattr(sys.modules.get(module), name, None)
        if table is not None:
            _put_back(table, own)


def _put_back(table: dict[Any, Any], own: dict[int, Any]) -> None:
    if not any(id(x) in own for item in table.items() for x in item):
        return
    items = [(own.get(id(k), k), own.get(id(v), v)) for k, v in table.items()]
    table.clear()
    table.update(items)
