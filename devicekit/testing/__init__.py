"""Testing device code on machines without a device: a simulated accelerator, a fake NVML, helpers.

The names are resolved on first use, so that importing this package imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devicekit.testing.asserts import assert_on as assert_on
    from devicekit.testing.asserts import assert_same as assert_same
    from devicekit.testing.nvml import FakeNvml as FakeNvml
    from devicekit.testing.simulation import Simulation as Simulation
    from devicekit.testing.simulation import simulate as simulate
    from devicekit.testing.strategies import batches as batches

# Each name and the module that defines it. The package is `simulation`, not `simulate`: a module
# named like the function would hide it (`devicekit.testing.simulate` would be one or the other,
# depending on what was imported first).
_HOME = {
    "FakeNvml": "nvml",
    "Simulation": "simulation",
    "assert_on": "asserts",
    "assert_same": "asserts",
    "batches": "strategies",
    "simulate": "simulation",
}

__all__ = [*sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
