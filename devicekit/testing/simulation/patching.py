"""Attributes that are replaced for a while, and put back."""

import functools
from collections.abc import Callable, Iterator
from types import MethodDescriptorType, MethodType, ModuleType
from typing import Any

from torch import Tensor

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """Replaces attributes of modules and classes, and undoes it in reverse order.

    Example:
        >>> import math
        >>> patches = Patches()
        >>> patches.set(math, "pi", 3)
        >>> math.pi
        3
        >>> patches.undo()
        >>> math.pi
        3.14159...
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._actions: list[Callable[[], object]] = []
        self._items: list[tuple[dict[Any, Any], Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name`, which may not exist yet; an inherited attribute is shadowed."""
        if isinstance(owner, type | ModuleType):
            before = vars(owner).get(name, _ABSENT)
        else:
            before = getattr(owner, name, _ABSENT)
        method = getattr(owner, name, None)
        if owner is Tensor and isinstance(method, MethodDescriptorType | _StandIn):
            value = _StandIn(value, method)
        self._undo.append((owner, name, before, value))
        setattr(owner, name, value)

    def set_item(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set `table[key]`, which may not exist yet."""
        self._items.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def later(self, action: Callable[[], object]) -> None:
        """Call something when everything is put back."""
        self._actions.append(action)

    def replaced(self) -> Iterator[tuple[Any, Any]]:
        """Yield each value that stands in the place of another, and that other, in order."""
        for owner, name, before, value in self._undo:
            if before is _ABSENT and isinstance(owner, type):
                before = _inherited(owner, name)
            if before is not _ABSENT:
                yield value, before

    def undo(self) -> None:
        """Put everything back as it was found."""
        while self._actions:
            self._actions.pop()()
        while self._undo:
            owner, name, before, _ = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        while self._items:
            table, key, before = self._items.pop()
            if before is _ABSENT:
                del table[key]
            else:
                table[key] = before


class _StandIn:
    """A function in the place of a method of Tensor, and equal to it.

    A subclass is told, in its `__torch_function__`, of the function that C++ finds under the name:
    this one. It is `Tensor.to` for who asks now, and is found where torch's own was put into a
    table before, as by torchvision.
    """

    def __init__(self, function: Callable[..., Any], method: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self.function, instance)

    def __eq__(self, other: object) -> bool:
        return self is other or self.method == other

    def __hash__(self) -> int:
        return hash(self.method)


def _inherited(cls: type, name: str) -> Any:
    bases = (vars(base) for base in cls.__mro__[1:])
    return next((members[name] for members in bases if name in members), _ABSENT)
