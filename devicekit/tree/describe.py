"""Words for tensors and objects in messages."""

from torch import Tensor

from devicekit.tree.anatomy import is_a
from devicekit.units import format_bytes

__all__ = ["describe", "dtype_and_shape"]


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
    try:
        size = f", {format_bytes(x.numel() * x.element_size())}"
    except Exception:  # a jagged nested tensor, or a subclass that refuses; only words are lost
        size = ""
    return f"{dtype_and_shape(x)}{size}"


def dtype_and_shape(x: Tensor) -> str:
    """A tensor without its size.

    Example:
        >>> import torch
        >>> dtype_and_shape(torch.zeros(2, 3))
        'float32[2, 3]'
    """
    dtype = str(x.dtype).removeprefix("torch.")
    try:
        return f"{dtype}[{', '.join(map(str, x.shape))}]"
    except Exception:  # a nested tensor has no shape, and a subclass may refuse to tell it
        return f"{dtype}[{'nested' if type(x) is Tensor else '?'}]"
