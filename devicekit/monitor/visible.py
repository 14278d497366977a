"""Which index CUDA gives to each GPU that NVML sees.

NVML numbers GPUs by their place on the bus. CUDA numbers the ones that `CUDA_VISIBLE_DEVICES` lets
through, in the order written there; the integers in it count in CUDA's own order, which is by speed
unless `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`. The UUID is what both sides agree on.

Sources: CUDA C++ Programming Guide, "CUDA Environment Variables"; the edge cases are those of
`torch.cuda.device_count`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from devicekit import driver

__all__ = ["cuda_order", "driver_order", "same_uuid", "visible_entries"]


def visible_entries(value: str | None) -> list[int] | list[str] | None:
    """Parse `CUDA_VISIBLE_DEVICES` as CUDA does.

    Args:
        value: The variable, or `None` when it is not set.

    Returns:
        `None` when nothing is hidden, else the integers or the (beginnings of) UUIDs that count.

    Example:
        >>> visible_entries("2,0"), visible_entries("0,-1,1"), visible_entries("0,0")
        ([2, 0], [0], [])
        >>> visible_entries("GPU-1a,GPU-2b")
        ['GPU-1a', 'GPU-2b']
    """
    if value is None:
        return None
    for prefix in ("GPU-", "MIG-"):
        if value.startswith(prefix):
            return _uuids(value, prefix)
    found: list[int] = []
    for entry in value.split(","):
        # CUDA reads the number an entry starts with and ignores the rest of it.
        number = re.match(r"[+-]?\d+", entry.strip())
        # Twenty digits are more than there are GPUs, and Python refuses to read some thousand.
        index = int(number.group()[:20]) if number else -1
        if index < 0:
            break
        if index in found:
            return []
        found.append(index)
    return found


def _uuids(value: str, prefix: str) -> list[str]:
    found: list[str] = []
    for entry in value.split(","):
        if not entry.startswith(prefix):
            break
        if entry in found:
            return []
        found.append(entry)
    return found


def same_uuid(one: str, other: str) -> bool:
    """Compare two UUIDs; torch's come without the prefix `GPU-` that NVML's have.

    Example:
        >>> same_uuid("GPU-1a2b", "1A2B")
        True
    """
    return _bare(one) == _bare(other)


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def cuda_order(
    gpus: Sequence[tuple[str | None, str | None]],
    mig_uuids: Sequence[str],
    environ: Mapping[str, str],
    ask: Callable[[], list[str] | None],
) -> list[str] | None:
    """Return the UUIDs in the order of their CUDA indices, or `None` when it cannot be told.

    Args:
        gpus: UUID and name of each GPU, in NVML's order.
        mig_uuids: The UUIDs of all MIG devices.
        environ: The environment variables of the process in question.
        ask: Asks the CUDA driver for the UUIDs; called only when the variables leave it open.
    """
    entries = visible_entries(environ.get("CUDA_VISIBLE_DEVICES"))
    if entries == []:
        return []
    if entries and isinstance(entries[0], str):
        known = [uuid for uuid, _ in gpus if uuid] + list(mig_uuids)
        return _by_uuid([str(entry) for entry in entries], known)
    names = {name for _, name in gpus}
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    # Without a difference in speed CUDA's order is the order of the bus as well. Where GPUs are
    # split into MIG devices CUDA skips or replaces some: only the driver knows.
    if mig_uuids or not (by_bus or len(names) == 1) or any(uuid is None for uuid, _ in gpus):
        return ask()
    uuids = [uuid for uuid, _ in gpus if uuid]
    if entries is None:
        return uuids
    found: list[str] = []
    for entry in entries:
        if int(entry) >= len(uuids):
            break
        found.append(uuids[int(entry)])
    return found


def _by_uuid(entries: list[str], known: list[str]) -> list[str]:
    """Complete abbreviated UUIDs; the first that is unknown or ambiguous ends the list."""
    found: list[str] = []
    for entry in entries:
        matches = [uuid for uuid in known if uuid.lower().startswith(entry.lower())]
        if len(matches) != 1:
            break
        if matches[0] in found:
            return []
        found.append(matches[0])
    return found


def driver_order() -> list[str] | None:
    """Ask the CUDA driver for the UUIDs in its order; `None` where it does not say."""
    answer = driver.ask_driver()
    uuids = [gpu.uuid for gpu in answer.gpus]
    return uuids if answer.state == "ok" and all(uuids) else None
