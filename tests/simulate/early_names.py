"""A module that takes names from torch when it is imported, as user code does."""

from functools import partial

from torch import Generator, Tensor, ones, tensor, zeros
from torch.cuda import device_count, get_device_name, is_available
from torch.cuda.amp import GradScaler

__all__ = ["Generator", "GradScaler", "device_count", "get_device_name", "is_available", "tensor"]

METHODS = {
    name: getattr(Tensor, name)
    for name in ("bernoulli", "new_tensor", "new_zeros", "normal_", "numpy", "to", "type")
}
"""Methods that a subclass of Tensor may look for in its `__torch_function__`."""

zeros_on = partial(zeros, 2)


class Holder:
    """Keeps one where no module holds it."""

    make = staticmethod(ones)


def default_argument(make=ones):
    return make(2, device="cuda")


def by_name():
    return zeros(2, device="cuda:1")
