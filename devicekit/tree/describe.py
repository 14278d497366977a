"""Words for tensors and objects in messages."""

from torch import Tensor

from devicekit.tree.anatomy import is_a

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
        size = _bytes(x.numel() * x.element_size())
    except RuntimeError:  # a jagged nested tensor has no such numbers; only words are lost
        return f"{dtype}[nested]"
    return f"{dtype}[{shape}], {size}"


def _bytes(count: float) -> str:
    if count < 1000:
        return f"{count:.0f} byte{'s' if count != 1 else ''}"
    unit = "KB"
    for unit in ("KB", "MB", "GB", "TB"):  # noqa: B007
        count /= 1000
        if count < 999.95:
            break
    return f"{count:.1f} {unit}"
