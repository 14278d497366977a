"""Expressions that make tensors: factories without `device=`, loaders, generators."""

import ast
from types import BuiltinFunctionType, FunctionType

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from devicekit.diagnosis.frames import MISSING, Call, has_type, lookup
from devicekit.diagnosis.mentions import mentions
from devicekit.diagnosis.search import Origin, Search, short
from devicekit.diagnosis.source import Fix, add_keyword, cut, insert

__all__ = ["call_of", "factory_in", "generator_in", "inline", "is_factory", "loader_in", "spine"]

# Functions of torch that make a tensor from numbers and take `device=`. By name: what stands behind
# the name may be replaced, as a simulated accelerator does.
_FACTORIES = frozenset(
    [
        "arange",
        "asarray",
        "as_tensor",
        "bartlett_window",
        "blackman_window",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "hamming_window",
        "hann_window",
        "kaiser_window",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "range",
        "scalar_tensor",
        "sparse_coo_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
    ]
)
_SCALAR_FACTORIES = frozenset({"as_tensor", "asarray", "scalar_tensor", "tensor"})
_LOADER_ITERATORS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")
_SAME_DEVICE = frozenset({"T", "mT", "H", "mH", "data", "real", "imag", "grad"})


def factory_in(node: ast.AST | None, call: Call) -> ast.Call | None:
    """The first call in an expression that makes a tensor without a word on the device."""
    for one in ast.walk(node) if node is not None else ():
        if (
            isinstance(one, ast.Call)
            and not any(keyword.arg in ("device", None) for keyword in one.keywords)
            and is_factory(one, call)
        ):
            return one
    return None


def is_factory(made: ast.Call, call: Call) -> bool:
    """Say whether a call makes a tensor from numbers, and no CPU scalar."""
    name = _name_in_torch(made.func, call)
    return name in _FACTORIES and not (name in _SCALAR_FACTORIES and _is_scalar(made))


def _name_in_torch(function: ast.expr, call: Call) -> str | None:
    """The name that torch has for a function, whatever the caller calls it."""
    value = lookup(function, call)
    if not has_type(value, BuiltinFunctionType | FunctionType):
        return None
    name: str = value.__name__
    return name if vars(torch).get(name) is value else None


def _is_scalar(made: ast.Call) -> bool:
    """Whether a call makes a CPU scalar, which may meet any tensor."""
    return bool(made.args) and isinstance(made.args[0], ast.Constant | ast.UnaryOp)


def call_of(node: ast.AST, call: Call, function: object) -> ast.Call | None:
    """The first call of a function in an expression."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and lookup(one.func, call) is function:
            return one
    return None


def generator_in(node: ast.AST, call: Call) -> ast.Call | None:
    """The first `torch.Generator()` in an expression that says no device."""
    made = call_of(node, call, torch.Generator)
    return made if made is not None and not made.args and not made.keywords else None


def loader_in(node: ast.AST, call: Call) -> str | None:
    """The data loader that an expression draws from: `loader`, `enumerate(loader)`, `next(it)`."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name | ast.Attribute):
            value = lookup(one, call)
            if has_type(value, DataLoader) or type(value).__name__ in _LOADER_ITERATORS:
                return ast.unparse(one)
    return None


def spine(node: ast.expr) -> ast.expr:
    """What an expression starts from: `self.pos` in `self.pos[:n].unsqueeze(0)`."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in _SAME_DEVICE
        ):
            node = node.value
        else:
            return node


def inline(search: Search) -> tuple[str, Origin] | None:
    """Find a tensor without a name: made, or moved away, within the statement that failed.

    Args:
        search: The frames; the statement is that of the innermost.

    Returns:
        The text of the part that makes the tensor, and what it is.
    """
    call = search.calls[0]
    expression = call.expression
    if expression is None:
        return None
    factory = factory_in(expression, call)
    if factory is not None:
        device = search.device_code(0, call.line)
        line = add_keyword(call.file, factory, f"device={device}", call.statement)
        place = search.place("instead of", factory.end_lineno or 0, call.file)
        return short(ast.unparse(factory)), Origin("made here without device=", Fix(line, place))
    operands = _operands(expression)
    moved = [one for one in operands if _moves(one)]
    unknown = [one for one in operands if _is_unknown(one, call)]
    helped = [one for one in operands if _is_call_of_python(one, call)]
    suspects = next((found for found in (moved, unknown, helped) if found), [])
    if len(suspects) != 1:
        return None
    operand = suspects[0]
    needless = _needless_move(operand, search) if moved else None
    if needless is not None:
        assert isinstance(needless.func, ast.Attribute)
        line = cut(call.file, needless.func.value, needless, call.statement)
        place = search.place("instead of", needless.end_lineno or 0, call.file)
        return short(ast.unparse(operand)), Origin("moved here", Fix(line, place))
    what = "moved here" if moved else "made by this call"
    line = insert(call.file, operand, search.move(0, call.line), call.statement)
    place = search.place("instead of", operand.end_lineno or 0, call.file)
    return short(ast.unparse(operand)), Origin(what, Fix(line, place))


def _operands(expression: ast.expr) -> list[ast.expr]:
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.Compare):
        return [expression.left, *expression.comparators]
    if isinstance(expression, ast.Subscript):
        return [expression.value, expression.slice]
    if not isinstance(expression, ast.Call):
        return []
    given = [*expression.args, *(keyword.value for keyword in expression.keywords)]
    if isinstance(expression.func, ast.Attribute):
        given.insert(0, expression.func.value)
    flat: list[ast.expr] = []
    for one in given:
        flat += one.elts if isinstance(one, ast.List | ast.Tuple) else [one]
    return flat


def _is_unknown(node: ast.expr, call: Call) -> bool:
    """Whether an operand is computed, and nothing in it tells on which device."""
    if not isinstance(node, ast.Call | ast.Attribute) or lookup(node, call) is not MISSING:
        return False
    return not any(has_type(m.value, Tensor) for m in mentions(node, call))


def _is_call_of_python(node: ast.expr, call: Call) -> bool:
    return isinstance(node, ast.Call) and isinstance(lookup(node.func, call), FunctionType)


def _needless_move(operand: ast.expr, search: Search) -> ast.Call | None:
    """The call in an operand that moves a tensor away from the right device, and does no more."""
    for one in ast.walk(operand):
        if (
            _moves_only(one)
            and isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.end_lineno == one.func.value.end_lineno
        ):
            value = lookup(one.func.value, search.calls[0])
            if has_type(value, Tensor) and value.device == search.target:
                return one
    return None


def _moves_only(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in ("cpu", "cuda"):
        return True
    return node.func.attr == "to" and len(node.args) + len(node.keywords) == 1


def _moves(node: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in ("cpu", "to", "cuda")
        for one in ast.walk(node)
    )
