"""Attributes of modules: which are registered, and how to register one that is not."""

import ast
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch import Tensor, nn

from devicekit.diagnosis.frames import function_at, has_type, parse
from devicekit.diagnosis.source import Fix, stores_of

__all__ = ["Store", "register", "store_of"]

_CONTAINERS = {
    ("list", nn.Module): "ModuleList",
    ("tuple", nn.Module): "ModuleList",
    ("dict", nn.Module): "ModuleDict",
    ("list", nn.Parameter): "ParameterList",
    ("tuple", nn.Parameter): "ParameterList",
    ("dict", nn.Parameter): "ParameterDict",
}


class Store(NamedTuple):
    """The assignment in a class that makes an attribute."""

    code: CodeType
    statement: ast.Assign | ast.AnnAssign
    value: ast.expr
    target: ast.Attribute

    @property
    def is_in_init(self) -> bool:
        """Whether it is made once, with the object."""
        return self.code.co_name == "__init__"


def store_of(owner: Any, attribute: str) -> Store | None:
    """Find the assignment that makes an attribute: in `__init__` if there, else in any method."""
    for function in _methods(type(owner), attribute):
        tree = parse(function.__code__.co_filename, function.__globals__)
        definition = function_at(tree, function.__code__) if tree is not None else None
        stores = stores_of(definition, attribute) if definition is not None else []
        if not stores:
            continue
        statement = stores[0] if function.__name__ == "__init__" else stores[-1]
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        target = next(
            one for one in targets if isinstance(one, ast.Attribute) and one.attr == attribute
        )
        assert statement.value is not None
        return Store(function.__code__, statement, statement.value, target)
    return None


def _methods(cls: type, attribute: str) -> list[FunctionType]:
    found: list[FunctionType] = []
    for base in cls.__mro__:
        for function in vars(base).values() if base not in (nn.Module, object) else ():
            while isinstance(function, FunctionType) and "__wrapped__" in vars(function):
                function = vars(function)["__wrapped__"]
            if isinstance(function, FunctionType) and attribute in function.__code__.co_names:
                found.append(function)
    return sorted(found, key=lambda one: one.__name__ != "__init__")


def _container_for(value: Any) -> str | None:
    """Which of torch's containers registers what a plain list, tuple or dict holds, if any."""
    kind = type(value).__name__
    if kind not in ("list", "tuple", "dict") or not value:
        return None
    if isinstance(value, dict) and not all(type(key) is str for key in value):
        return None
    items = list(value.values()) if isinstance(value, dict) else list(value)
    for base in (nn.Module, nn.Parameter):
        if all(isinstance(one, base) for one in items):
            return _CONTAINERS[kind, base]
    return None


def register(owner: nn.Module, attribute: str, value: Any, place: str, store: Store) -> Fix | None:
    """The line for `__init__` that registers what an attribute holds; None if none can.

    Args:
        owner: The module.
        attribute: The name of the attribute.
        value: What it holds.
        place: Where the line goes, in words.
        store: The assignment that the line replaces.
    """
    me = ast.unparse(store.target.value)
    made = ast.unparse(store.value)
    if has_type(value, Tensor):
        return Fix(f'{me}.register_buffer("{attribute}", {made}, persistent=False)', place)
    container = _container_for(value)
    if container is None:
        return None
    return Fix(f"{me}.{attribute} = {_nn(owner)}.{container}({made})", place)


def _nn(owner: nn.Module) -> str:
    """How the file of a module's class spells `torch.nn`."""
    for function in vars(type(owner)).values():
        if isinstance(function, FunctionType):
            for name, value in function.__globals__.items():
                if value is nn:
                    return name
    return "torch.nn"
