"""A simulated accelerator on a CPU-only machine: real tensors, CPU kernels, CUDA's device rules.

How it is built, from the bottom up::

    private     every private name of torch that is used here, and the versions it was seen in
    patching    attributes that are replaced for a while
    state       what is simulated now: how many devices, their name, memory; the extension points
    memory      live bytes per device, the limit, OutOfMemoryError
    tensors     a device tensor over the bytes of a CPU tensor, and back (no copy)
    operators   the operator table in the torch wheel: which check CUDA makes of which operator
    rules       these checks, and what CUDA says
    rng         one generator per device
    engine      the kernel behind every operator: check devices, run the CPU kernel, wrap
    factories, fused, recurrent, layouts, autocast    kernels that need more than that
    autograd, storages, pinning, compiled    parts of torch that have no hook for a backend
    order       what is ordered behind what
    late        copies that land late
    streams     streams and events
    module      `torch.sim`, the device module
    registration    telling torch of all this
    as_cuda     the same under CUDA's name
    processes   what a forked or spawned process sees
    api         `simulate`
"""

from devicekit.testing.simulation.api import Simulation, simulate

__all__ = ["Simulation", "simulate"]
