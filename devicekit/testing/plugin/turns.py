"""Taking turns: where several workers of pytest-xdist share an accelerator, one test at a time."""

import contextlib
import gc
import os
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devicekit.device import Device

files: set[str] = set()
"""The files that this process has locked; whoever started the workers removes them."""


@contextlib.contextmanager
def turn(devices: "Sequence[Device]") -> Generator[None]:
    """Waits until no other worker runs a test on the first of these accelerators.

    Without it `pytest -n auto` stacks all workers on one card until its memory is full; the memory
    is given back at the end of a turn. Nothing happens outside pytest-xdist, where there are as
    many devices as workers, and on Windows.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    device = devices[0]
    if workers <= len(devices):
        yield
        return
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    import torch

    # The run's own name, so that a run inside a test of another one does not wait for it for ever.
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    path = Path(tempfile.gettempdir(), f"devicekit-{run}-{device.type}-{device.index}.lock")
    files.add(str(path))
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            gc.collect()
            empty_cache = getattr(torch.get_device_module(device.type), "empty_cache", None)
            if empty_cache is not None:
                empty_cache()
