"""The GPUs of this machine and their processes, now; see `snapshot`.

Everything here asks NVML, the library behind nvidia-smi. Nothing creates a CUDA context.
"""

from devicekit.monitor.collect import snapshot as snapshot
from devicekit.monitor.collect import snapshots as snapshots
from devicekit.monitor.data import Gpu as Gpu
from devicekit.monitor.data import GpuProcess as GpuProcess
from devicekit.monitor.data import OwnMemory as OwnMemory
from devicekit.monitor.data import Snapshot as Snapshot
from devicekit.monitor.reasons import REASONS as REASONS
from devicekit.monitor.reasons import UNAVAILABLE as UNAVAILABLE

__all__ = [
    "REASONS",
    "UNAVAILABLE",
    "Gpu",
    "GpuProcess",
    "OwnMemory",
    "Snapshot",
    "snapshot",
    "snapshots",
]
