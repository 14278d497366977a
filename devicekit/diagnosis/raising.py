"""Which exceptions may be about devices, by who raised them and from what."""

import ast
from collections.abc import Iterator
from types import FrameType, TracebackType

import torch

from devicekit.diagnosis.frames import Call, is_library, is_peer
from devicekit.errors import DeviceError, DeviceMismatchError

__all__ = ["chain_of", "is_candidate", "is_raised_by_user"]


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that libraries raised it from; what the user raised is left alone."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        last = _last_frame(one.__traceback__)
        if last is None:
            return
        file = last.f_code.co_filename
        one = one.__cause__ if is_library(file) or is_peer(file) else None


def is_candidate(error: BaseException) -> bool:
    """Say whether an error is of a type that torch has for tensors on different devices."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    if isinstance(error, DeviceError):
        return isinstance(error, DeviceMismatchError)
    return isinstance(error, RuntimeError | TypeError | ValueError)


def is_raised_by_user(traceback: TracebackType | None, innermost: Call) -> bool:
    """Whether user code itself raised the error: its words are left alone, whatever they say."""
    last = _last_frame(traceback)
    if last is None or is_library(last.f_code.co_filename):
        return False
    return isinstance(innermost.statement, ast.Raise | ast.Assert)


def _last_frame(traceback: TracebackType | None) -> FrameType | None:
    """The frame that raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return None if traceback is None else traceback.tb_frame
