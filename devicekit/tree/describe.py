"""Words for tensors and objects in messages."""

from torch import Tensor

from devicekit.tree.anatomy import is_a
from devicekit.units import format_bytes

__all__ = ["describe"]


def describe(x: object) -> str:
    """A tensor as dtype, shape and size, any other object as the name of its type.

    Example:
        >>> import torch
        >>> describe(torch.zeros(100, 4))
        'float32[100, 4], 1.6 KB'
        >>> describe({})
        'dict'
    """
    if not is_a(x, Tensor):
        return type(x).__qualname__
    dtype = str(x.dtype).removeprefix("torch.")
    try:
        shape = ", ".join(map(str, x.shape))
        size = format_bytes(x.numel() * x.element_size())
    except RuntimeError:  # a jagged nested tensor has no such numbers; only words are lost
        return f"{dtype}[nested]"
    return f"{dtype}[{shape}], {size}"
