"""The one walker: what a container is, where its tensors are, and how to put it together again.

Moving, pinning, packing, finding devices and naming paths all go through this package, so that a
type which one of them knows is known to all of them.
"""

from devicekit.tree.containers import register, unregister
from devicekit.tree.describe import describe, dtype_and_shape
from devicekit.tree.find import find_hidden, find_tensors
from devicekit.tree.mapping import copy_containers, map_tensors, mapped_in_two_steps
from devicekit.tree.steps import Step

__all__ = [
    "Step",
    "copy_containers",
    "describe",
    "dtype_and_shape",
    "find_hidden",
    "find_tensors",
    "map_tensors",
    "mapped_in_two_steps",
    "register",
    "unregister",
]
