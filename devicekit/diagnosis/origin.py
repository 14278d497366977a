"""Where the tensor that is off comes from, and which line of code mends that.

Follows a name from the statement that failed to the place that decides its device: out of the
function for an argument, up to the assignment for a variable, to the owner for an attribute.
"""

import ast
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from devicekit.diagnosis.frames import MISSING, Call, function_at, instance_dict, lookup, parse
from devicekit.diagnosis.mentions import mentions
from devicekit.diagnosis.source import (
    Fix,
    add_keyword,
    binding_of,
    insert,
    lines_of,
    stores_of,
)
from devicekit.diagnosis.tensors import devices_of, tensors_of

__all__ = ["Origin", "Search", "inline", "is_assignable", "trace"]

_MANY_STEPS = 12

# Functions that make a tensor out of nothing and take `device=`.
_FACTORIES = frozenset(
    id(getattr(torch, name))
    for name in [
        "arange",
        "asarray",
        "as_tensor",
        "bartlett_window",
        "blackman_window",
        "complex",
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
    if name != "complex"
)
_LOADER_ITERATORS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")


@dataclass(frozen=True)
class Origin:
    """What the tensor is, and how to mend it.

    Attributes:
        what: In words, to stand behind its shape; empty for a plain argument.
        fix: The line to type, or None where no single line mends it.
        name: Where it is a variable that may be assigned in the frame of the statement, its name.
    """

    what: str
    fix: Fix | None
    name: str | None = None


@dataclass
class Search:
    """The frames to search, innermost first, and the device that the tensor should be on."""

    calls: list[Call]
    target: torch.device
    steps: int = field(default=0)

    @property
    def quoted(self) -> str:
        return f'"{self.target}"'

    def inside(self, module: nn.Module, off: Sequence[tuple[str, Tensor]]) -> Origin:
        """Some tensors that a module has registered are off, while the others are not."""
        path, tensor = off[0]
        word = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        what = f"{word} of {type(module).__name__}, which is otherwise on {self.target}"
        place, root = _outermost(self, module, 0, ast.Name(path.partition(".")[0]))
        return Origin(what, Fix(f"{root}.to({self.quoted})", place))


def trace(search: Search, value: Any, node: ast.AST, at: int = 0) -> Origin | None:
    """Find out what an expression of a frame is that has a value on the wrong device."""
    search.steps += 1
    if search.steps > _MANY_STEPS:
        return None
    while isinstance(node, ast.Starred | ast.Await):
        node = node.value
    if isinstance(node, ast.NamedExpr):
        node = node.target
    if isinstance(node, ast.Subscript):
        return _item(search, value, node, at)
    if isinstance(node, ast.Attribute):
        return _attribute(search, value, node, at)
    if isinstance(node, ast.Name):
        return _name(search, value, node, at)
    if isinstance(node, ast.Call):  # super() stands for the first argument
        return None
    return None


def _item(search: Search, value: Any, node: ast.Subscript, at: int) -> Origin | None:
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        base = base.value
    holder = lookup(base, search.calls[at])
    if isinstance(holder, nn.Module):
        return _registered(search, value, node, at, "layer" if _is_module(value) else "parameter")
    return trace(search, holder, base, at)


def _is_module(value: Any) -> bool:
    return isinstance(value, nn.Module)


# Attributes


def _attribute(search: Search, value: Any, node: ast.Attribute, at: int) -> Origin | None:
    call = search.calls[at]
    owner = lookup(node.value, call)
    if owner is MISSING:
        return None
    if isinstance(owner, Tensor):  # x.grad, x.T: what x is
        return trace(search, owner, node.value, at)
    if isinstance(owner, ModuleType):
        return _elsewhere(search, node, at, f"global of {owner.__name__}")
    own = instance_dict(owner)
    if isinstance(owner, nn.Module):
        made = _made_in_method(search, node, at)
        if made is not None:
            return made
        for registry, word in (
            ("_parameters", "parameter"),
            ("_buffers", "buffer"),
            ("_modules", "layer"),
        ):
            if node.attr in (own.get(registry) or ()):
                return _registered(search, value, node, at, word)
        if node.attr in own:
            return _unregistered(search, owner, value, node, at)
        return _elsewhere(search, node, at, f"attribute of the class {type(owner).__name__}")
    if node.attr in own and not isinstance(owner, type):
        return _foreign(search, owner, value, node, at)
    return _elsewhere(search, node, at, f"attribute of {_class_name(owner)}")


def _class_name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__


def _made_in_method(search: Search, node: ast.Attribute, at: int) -> Origin | None:
    """An attribute that the running method has assigned itself, as in a lazy cache."""
    call = search.calls[at]
    function = call.function
    if function is None or call.code.co_name == "__init__":
        return None
    stores = [one for one in stores_of(function, node.attr) if one.lineno <= call.line]
    if not stores or stores[-1].value is None:
        return None
    return _assigned_value(search, stores[-1], stores[-1].value, at, ast.unparse(node))


def _registered(search: Search, value: Any, node: ast.expr, at: int, word: str) -> Origin | None:
    call = search.calls[at]
    owner_node = node.value if isinstance(node, ast.Attribute | ast.Subscript) else node
    owner = lookup(owner_node, call)
    devices = devices_of(one for _, one in tensors_of(owner, ""))
    if search.target not in devices:
        found = trace(search, owner, owner_node, at)
        if found is not None:
            return found
    place, path = _outermost(search, value, at, owner_node)
    others = f", which is otherwise on {search.target}" if search.target in devices else ""
    return Origin(
        f"{word} of {type(owner).__name__}{others}",
        Fix(f"{path}.to({search.quoted})", place),
    )


def _outermost(search: Search, value: Any, at: int, owner_node: ast.expr) -> tuple[str, str]:
    """The outermost statement that uses a module which holds the value, and that module."""
    for call in reversed(search.calls[at:]):
        if call.expression is None:
            continue
        for path, _, module in mentions(call.expression, call):
            if isinstance(module, nn.Module) and _holds(module, value):
                return _before(call, search), path
    return _before(search.calls[at], search), ast.unparse(owner_node)


def _holds(module: nn.Module, value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(one is value for one in nn.Module.modules(module))
    return any(one is value for _, one in tensors_of(module, ""))


def _unregistered(
    search: Search, owner: nn.Module, value: Any, node: ast.Attribute, at: int
) -> Origin | None:
    owner_name = type(owner).__name__
    store = _store_in_class(owner, node.attr)
    if isinstance(value, Tensor):
        what = f"plain attribute of {owner_name}: .to() leaves it behind"
        if store is None:
            return Origin(what, _convert(search, node, at))
        call, assignment = store
        assert assignment.value is not None
        if call.co_name != "__init__":
            found = _made_in(search, call, assignment, at)
            return Origin(what, found or _convert(search, node, at))
        me = ast.unparse(_target(assignment, node.attr).value)
        code = (
            f'{me}.register_buffer("{node.attr}", {ast.unparse(assignment.value)},'
            " persistent=False)"
        )
        return Origin(what, Fix(code, _instead(search, call.co_filename, assignment)))
    if isinstance(value, nn.Module):
        what = f"layer that {owner_name} has not registered: .to() leaves it behind"
        return Origin(what, Fix(f"{ast.unparse(node)}.to({search.quoted})", _before_at(search, at)))
    return _container(search, owner, value, node, at, store)


_HOLDERS = {
    (list, nn.Module): "ModuleList",
    (tuple, nn.Module): "ModuleList",
    (dict, nn.Module): "ModuleDict",
    (list, nn.Parameter): "ParameterList",
    (tuple, nn.Parameter): "ParameterList",
    (dict, nn.Parameter): "ParameterDict",
}


def holder_for(value: Any) -> str | None:
    """Which of torch's containers registers what a plain list, tuple or dict holds."""
    if not isinstance(value, list | tuple | dict) or not value:
        return None
    if isinstance(value, dict) and not all(type(key) is str for key in value):
        return None
    items = list(value.values()) if isinstance(value, dict) else list(value)
    base = next(kind for kind in (list, tuple, dict) if isinstance(value, kind))
    for kind in (nn.Module, nn.Parameter):
        if all(isinstance(one, kind) for one in items):
            return _HOLDERS[base, kind]
    return None


def _container(
    search: Search,
    owner: nn.Module,
    value: Any,
    node: ast.Attribute,
    at: int,
    store: Any,
) -> Origin | None:
    kind = next((one for one in ("list", "tuple", "dict") if type(value).__name__ == one), None)
    kind = kind or type(value).__name__
    holder = holder_for(value)
    what = f"in a plain {kind} of {type(owner).__name__}: .to() leaves it behind"
    moved = f"{ast.unparse(node)} = devicekit.to_device({ast.unparse(node)}, {search.quoted})"
    if holder is None or store is None or store[0].co_name != "__init__":
        return Origin(what, Fix(moved, _before_at(search, at)))
    call, assignment = store
    target = ast.unparse(_target(assignment, node.attr))
    module = _spelling_of_nn(owner)
    code = f"{target} = {module}.{holder}({ast.unparse(assignment.value)})"
    return Origin(what, Fix(code, _instead(search, call.co_filename, assignment)))


def _spelling_of_nn(owner: nn.Module) -> str:
    for function in vars(type(owner)).values():
        if isinstance(function, FunctionType):
            for name, value in function.__globals__.items():
                if value is nn:
                    return name
    return "torch.nn"


def _target(assignment: ast.Assign | ast.AnnAssign, attribute: str) -> ast.Attribute:
    targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
    return next(one for one in targets if isinstance(one, ast.Attribute) and one.attr == attribute)


def _store_in_class(owner: Any, attribute: str) -> Any:
    """The assignment that makes an attribute: in `__init__` if there, else in another method."""
    functions: list[FunctionType] = []
    for cls in type(owner).__mro__:
        if cls in (nn.Module, object):
            continue
        for function in vars(cls).values():
            while hasattr(function, "__wrapped__") and isinstance(function, FunctionType):
                function = function.__wrapped__
            if isinstance(function, FunctionType) and attribute in function.__code__.co_names:
                functions.append(function)
    functions.sort(key=lambda one: one.__name__ != "__init__")
    for function in functions:
        tree = parse(function.__code__.co_filename, function.__globals__)
        definition = function_at(tree, function.__code__) if tree is not None else None
        if definition is None:
            continue
        stores = stores_of(definition, attribute)
        if stores:
            return function.__code__, stores[0] if function.__name__ == "__init__" else stores[-1]
    return None


def _made_in(
    search: Search, code: Any, assignment: ast.Assign | ast.AnnAssign, at: int
) -> Fix | None:
    """Mend an assignment in another method: give its factory a device."""
    tree = parse(code.co_filename)
    factory = _factory_in(assignment.value, None) if tree is not None else None
    if factory is None:
        return None
    line = add_keyword(code.co_filename, factory, f"device={search.quoted}", assignment)
    return Fix(line, _instead_line(search, code.co_filename, factory.end_lineno or 0))


def _foreign(search: Search, owner: Any, value: Any, node: ast.Attribute, at: int) -> Origin | None:
    path = ast.unparse(node)
    made = _made_in_method(search, node, at)
    if made is not None:
        return made
    moved = (
        f"{path}.to({search.quoted})"
        if isinstance(value, Tensor | nn.Module)
        else f"devicekit.to_device({path}, {search.quoted})"
    )
    code = moved if isinstance(value, nn.Module) else f"{path} = {moved}"
    return Origin(f"attribute of {type(owner).__name__}", Fix(code, _before_at(search, at)))


# Names


def _name(search: Search, value: Any, node: ast.Name, at: int) -> Origin | None:
    call = search.calls[at]
    name = node.id
    function = call.function
    is_module_level = call.code.co_name == "<module>"
    if isinstance(value, torch.Generator):
        return _generator(search, name, at)
    if name in call.code.co_freevars:
        if call.code.co_name.startswith("<") and at + 1 < len(search.calls):
            if search.calls[at + 1].bound(name) is value:
                return trace(search, value, node, at + 1)
        return _elsewhere(search, node, at, "variable of the enclosing function")
    if name not in call.scope and not is_module_level:
        return _elsewhere(search, node, at, "global")
    if function is None:
        return _plain(search, value, name, at)
    binding = binding_of(function, name, call.line)
    if binding is not None and (name not in call.arguments() or _runs_before(binding, call)):
        return _bound(search, value, name, binding, at)
    if name in call.arguments():
        return _argument(search, value, name, at)
    return _plain(search, value, name, at)


def _runs_before(binding: ast.AST, call: Call) -> bool:
    return getattr(binding, "lineno", 0) < call.line


def _plain(search: Search, value: Any, name: str, at: int, what: str = "") -> Origin:
    return Origin(
        what, _move(search, value, name, _before_at(search, at)), name if at == 0 else None
    )


def _move(search: Search, value: Any, name: str, place: str) -> Fix:
    if isinstance(value, nn.Module):
        return Fix(f"{name}.to({search.quoted})", place)
    if isinstance(value, Optimizer):
        return Fix(f"devicekit.to_device({name}, {search.quoted})", place)
    if isinstance(value, Tensor):
        move = ".cpu()" if search.target.type == "cpu" else f".to({search.quoted})"
        return Fix(f"{name} = {name}{move}", place)
    return Fix(f"{name} = devicekit.to_device({name}, {search.quoted})", place)


def _argument(search: Search, value: Any, name: str, at: int) -> Origin | None:
    """Go on in the caller, where the argument has another name."""
    if at + 1 < len(search.calls):
        caller = search.calls[at + 1]
        if caller.expression is not None:
            for path, node, candidate in mentions(caller.expression, caller):
                if candidate is value or _contains(candidate, value):
                    found = trace(search, candidate, node, at + 1)
                    if found is None:
                        continue
                    return _seen_from(found, search.calls[at], name, path, at)
            if caller.code.co_name.startswith("<") and isinstance(value, nn.Module):
                pass
    return _plain(search, value, name, at, f"argument of {search.calls[at].name}")


def _seen_from(found: Origin, call: Call, name: str, path: str, at: int) -> Origin:
    if name in ("self", path):
        return Origin(found.what, found.fix)
    what = f"argument of {call.name}: `{path}`"
    return Origin(f"{what}, {found.what}" if found.what else what, found.fix)


def _contains(candidate: Any, value: Any) -> bool:
    if isinstance(candidate, nn.Module):
        return isinstance(value, nn.Module) and _holds(candidate, value)
    if isinstance(candidate, list | tuple):
        return any(one is value for one in candidate)
    if isinstance(candidate, dict):
        return any(one is value for one in candidate.values())
    if isinstance(candidate, functools.partial):
        return any(one is value for one in (*candidate.args, *candidate.keywords.values()))
    return False


def _bound(search: Search, value: Any, name: str, binding: ast.AST, at: int) -> Origin | None:
    call = search.calls[at]
    if isinstance(binding, ast.For | ast.AsyncFor | ast.comprehension):
        return _loop_variable(search, value, name, binding, at)
    if isinstance(binding, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        assert binding.value is not None
        loader = _loader_in(binding.value, call)
        if loader is not None:
            return _batch(search, name, binding, loader, at, getattr(binding, "end_lineno", 0))
        if isinstance(value, nn.Module | Optimizer):
            return _plain(search, value, name, at)
        targets = binding.targets if isinstance(binding, ast.Assign) else [binding.target]
        if isinstance(binding, ast.NamedExpr) or not all(isinstance(t, ast.Name) for t in targets):
            return _plain(search, value, name, at)
        return _assigned_value(search, binding, binding.value, at, name)
    return _plain(search, value, name, at)


def _loop_variable(
    search: Search,
    value: Any,
    name: str,
    loop: ast.For | ast.AsyncFor | ast.comprehension,
    at: int,
) -> Origin | None:
    call = search.calls[at]
    loader = _loader_in(loop.iter, call)
    if loader is not None and isinstance(loop, ast.For | ast.AsyncFor):
        return _batch(search, name, loop, loader, at, 0)
    for _, node, candidate in mentions(loop.iter, call):
        if isinstance(candidate, nn.Module) and isinstance(value, nn.Module | Tensor):
            if _holds(candidate, value):
                return _registered(search, value, node, at, "layer")
        elif _contains(candidate, value) or _contains_deep(candidate, value):
            return trace(search, candidate, node, at)
    if isinstance(loop, ast.comprehension):
        return _elsewhere(search, ast.Name(name), at, "loop variable")
    return _plain(search, value, name, at)


def _contains_deep(candidate: Any, value: Any) -> bool:
    if not isinstance(candidate, list | tuple | dict):
        return False
    items = candidate.values() if isinstance(candidate, dict) else candidate
    return any(_contains(one, value) for one in items if isinstance(one, list | tuple | dict))


def _loader_in(node: ast.AST, call: Call) -> str | None:
    """The data loader that an expression draws from: `loader`, `enumerate(loader)`, `next(it)`."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name | ast.Attribute):
            value = lookup(one, call)
            if isinstance(value, DataLoader) or type(value).__name__ in _LOADER_ITERATORS:
                return ast.unparse(one)
    return None


def _batch(search: Search, name: str, binding: ast.AST, loader: str, at: int, end: int) -> Origin:
    if isinstance(binding, ast.For | ast.AsyncFor):
        target, place = ast.unparse(binding.target), f"before line {binding.body[0].lineno}"
    elif isinstance(binding, ast.Assign):
        target, place = ast.unparse(binding.targets[0]), f"after line {end}"
    else:
        target, place = name, f"after line {end}"
    target = target.strip("()") if "," in target and target.count("(") == 1 else target
    value = f"({target})" if "," in target else target
    code = f"{target} = devicekit.to_device({value}, {search.quoted})"
    return Origin(
        f"from the DataLoader `{loader}`, which yields CPU tensors",
        Fix(code, place + _file_note(search, search.calls[at].file)),
        name if at == 0 else None,
    )


def _assigned_value(
    search: Search, statement: ast.AST, value_node: ast.expr, at: int, name: str
) -> Origin | None:
    """A variable with an assignment of its own: look at what is assigned."""
    call = search.calls[at]
    assert isinstance(statement, ast.stmt)
    factory = _factory_in(value_node, call)
    if factory is not None:
        source = ast.unparse(factory)
        what = f"made by {_short(source)} without device="
        device = _device_code(search, at, statement.lineno)
        line = add_keyword(call.file, factory, f"device={device}", statement)
        place = _instead_line(search, call.file, factory.end_lineno or 0)
        return Origin(what, Fix(line, place), name if at == 0 else None)
    generator = _generator_made(value_node, call)
    if generator is not None:
        return None
    base = _spine(value_node)
    value = lookup(base, call)
    if isinstance(value, Tensor) and value.device != search.target:
        found = trace(search, value, base, at)
        if found is not None:
            return found
    loaded = _call_of(value_node, call, torch.load)
    if loaded is not None and not any(one.arg == "map_location" for one in loaded.keywords):
        line = add_keyword(call.file, loaded, f"map_location={search.quoted}", statement)
        place = _instead_line(search, call.file, loaded.end_lineno or 0)
        return Origin("loaded without map_location=", Fix(line, place), name if at == 0 else None)
    what = f"the result of {_short(ast.unparse(value_node))}"
    if not isinstance(value_node, ast.Call | ast.Attribute | ast.Name | ast.Subscript):
        return _plain(search, _local(call, name), name, at, what)
    move = (
        "cpu()"
        if search.target.type == "cpu"
        else (f"to({_device_code(search, at, statement.lineno)})")
    )
    line = insert(call.file, value_node, f".{move}", statement)
    place = _instead_line(search, call.file, value_node.end_lineno or 0)
    if not isinstance(_local(call, name), Tensor):
        return _plain(search, _local(call, name), name, at, what)
    return Origin(what, Fix(line, place), name if at == 0 else None)


def _local(call: Call, name: str) -> Any:
    try:
        return lookup(ast.parse(name, mode="eval").body, call)
    except SyntaxError:
        return MISSING


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _spine(node: ast.expr) -> ast.expr:
    """What an expression starts from: `self.pos` in `self.pos[:n].unsqueeze(0)`."""
    while True:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Subscript) or (
            isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data", "real", "imag")
        ):
            node = node.value
        else:
            return node


def _factory_in(node: ast.expr | None, call: Call | None) -> ast.Call | None:
    """The first call in an expression that makes a tensor and says no device."""
    if node is None:
        return None
    for one in ast.walk(node):
        if not isinstance(one, ast.Call) or any(k.arg in ("device", None) for k in one.keywords):
            continue
        if call is None:
            if isinstance(one.func, ast.Attribute) and ast.unparse(one.func.value) == "torch":
                if id(getattr(torch, one.func.attr, None)) in _FACTORIES:
                    return one
        elif id(lookup(one.func, call)) in _FACTORIES:
            return one
    return None


def _call_of(node: ast.expr, call: Call, function: Any) -> ast.Call | None:
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and lookup(one.func, call) is function:
            return one
    return None


def _generator_made(node: ast.expr, call: Call) -> ast.Call | None:
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and not one.args and not one.keywords:
            if lookup(one.func, call) is torch.Generator:
                return one
    return None


def _generator(search: Search, name: str, at: int) -> Origin | None:
    for index in range(at, len(search.calls)):
        call = search.calls[index]
        if call.function is None:
            continue
        binding = binding_of(call.function, name, call.line)
        if isinstance(binding, ast.Assign):
            made = _generator_made(binding.value, call)
            if made is not None:
                line = add_keyword(call.file, made, f"device={search.quoted}", binding)
                place = _instead_line(search, call.file, made.end_lineno or 0)
                return Origin("generator of another device", Fix(line, place))
        if name not in call.arguments():
            break
    return Origin(
        "generator of another device",
        Fix(f"{name} = torch.Generator(device={search.quoted})", _before_at(search, at)),
    )


def _elsewhere(search: Search, node: ast.AST, at: int, what: str) -> Origin:
    """A name that must not be assigned here: mend its use."""
    call = search.calls[at]
    used = _find_use(call, node)
    value = lookup(node, call)
    if isinstance(value, nn.Module):
        return Origin(what, _move(search, value, ast.unparse(node), _before_at(search, at)))
    if used is None or not isinstance(value, Tensor):
        return Origin(what, None)
    move = (
        "cpu()" if search.target.type == "cpu" else (f"to({_device_code(search, at, call.line)})")
    )
    line = insert(call.file, used, f".{move}", call.statement)
    return Origin(what, Fix(line, _instead_line(search, call.file, used.end_lineno or 0)))


def _find_use(call: Call, node: ast.AST) -> ast.expr | None:
    wanted = ast.unparse(node)
    for root in (call.expression, call.statement):
        for one in ast.walk(root) if root is not None else ():
            if isinstance(one, ast.Name | ast.Attribute) and ast.unparse(one) == wanted:
                return one
    return None


def _convert(search: Search, node: ast.Attribute, at: int) -> Fix:
    path = ast.unparse(node)
    return Fix(f"{path} = {path}.to({search.quoted})", _before_at(search, at))


# Devices and places, in words


def _device_code(search: Search, at: int, line: int) -> str:
    """The target device, in words that are right also on another machine."""
    if search.target.type == "cpu":
        return '"cpu"'
    call = search.calls[at]
    function = call.function
    for name in call.arguments():
        value = call.scope.get(name, MISSING)
        is_rebound = function is not None and binding_of(function, name, line) is not None
        if is_rebound or name == "self":
            continue
        if isinstance(value, Tensor) and value.device == search.target:
            return f"{name}.device"
        if _is_target(value, search.target):
            return name
    for name, value in {**call.globals, **call.scope}.items():
        if _is_target(value, search.target) and _is_bound_before(call, name, line):
            return name
    return search.quoted


def _is_target(value: Any, target: torch.device) -> bool:
    return isinstance(value, str | torch.device) and not value == "" and str(value) == str(target)


def _is_bound_before(call: Call, name: str, line: int) -> bool:
    if name.startswith("_"):
        return False
    if name not in call.scope or call.function is None:
        return True
    binding = binding_of(call.function, name, line)
    return binding is not None and getattr(binding, "lineno", line) < line


def _file_note(search: Search, filename: str) -> str:
    return "" if filename == search.calls[0].file else f" of {_base(filename)}"


def _base(filename: str) -> str:
    return filename.replace("\\", "/").rpartition("/")[2]


def _before(call: Call, search: Search) -> str:
    line = call.statement.lineno if call.statement is not None else call.line
    return f"before line {line}{_file_note(search, call.file)}"


def _before_at(search: Search, at: int) -> str:
    return _before(search.calls[at], search)


def _instead(search: Search, filename: str, statement: ast.stmt) -> str:
    return f"instead of {lines_of(statement)}{_file_note(search, filename)}"


def _instead_line(search: Search, filename: str, number: int) -> str:
    return f"instead of line {number}{_file_note(search, filename)}"


# What the statement itself makes


def inline(search: Search) -> tuple[str, Origin] | None:
    """Find a tensor that has no name: made, or moved away, within the statement that failed."""
    call = search.calls[0]
    expression = call.expression
    if expression is None:
        return None
    factory = _factory_in(expression, call)
    if factory is not None and not _makes_scalar(factory):
        device = _device_code(search, 0, call.line)
        line = add_keyword(call.file, factory, f"device={device}", call.statement)
        place = _instead_line(search, call.file, factory.end_lineno or 0)
        source = _short(ast.unparse(factory))
        return source, Origin("made here without device=", Fix(line, place))
    operands = [one for one in _operands(expression) if _is_unknown(one, call)]
    moved = [one for one in operands if _leaves_device(one)]
    if len(moved or operands) != 1:
        return None
    operand = (moved or operands)[0]
    source = ast.unparse(operand)
    what = "moved away here" if moved else "the result of this call"
    move = f".to({_device_code(search, 0, call.line)})"
    line = insert(call.file, operand, move, call.statement)
    place = _instead_line(search, call.file, operand.end_lineno or 0)
    return _short(source), Origin(what, Fix(line, place))


def _makes_scalar(factory: ast.Call) -> bool:
    return (
        bool(factory.args)
        and isinstance(factory.args[0], ast.Constant | ast.UnaryOp)
        and (isinstance(factory.func, ast.Attribute) and "tensor" in factory.func.attr)
    )


def _operands(expression: ast.expr) -> list[ast.expr]:
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    if isinstance(expression, ast.Compare):
        return [expression.left, *expression.comparators]
    if isinstance(expression, ast.Subscript):
        return [expression.value, expression.slice]
    if isinstance(expression, ast.Call):
        given = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        if isinstance(expression.func, ast.Attribute):
            given.insert(0, expression.func.value)
        flat: list[ast.expr] = []
        for one in given:
            flat += one.elts if isinstance(one, ast.List | ast.Tuple) else [one]
        return flat
    return []


def _is_unknown(node: ast.expr, call: Call) -> bool:
    if not isinstance(node, ast.Call | ast.Attribute):
        return False
    return lookup(node, call) is MISSING and (_leaves_device(node) or not mentions(node, call))


def _leaves_device(node: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in ("cpu", "to", "cuda")
        for one in ast.walk(node)
    )


def is_assignable(name: str, call: Call) -> bool:
    """Whether a line in this frame may assign to a name without hiding another variable."""
    if call.code.co_name == "<module>":
        return True
    return name in call.scope and name not in call.code.co_freevars
