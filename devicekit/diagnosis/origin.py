"""Where the tensor that is off comes from, and which line of code mends that.

Follows a name from the statement that failed to the place that decides its device: out of the
function for an argument, up to the assignment for a variable, to the owner for an attribute.
"""

import ast
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit import compat
from devicekit.diagnosis.frames import GENERATOR, MISSING, Call, has_type, instance_dict, lookup
from devicekit.diagnosis.making import factory_in, loader_in, spine
from devicekit.diagnosis.mending import generator, made_by, moving, use
from devicekit.diagnosis.mentions import Mention, mentions
from devicekit.diagnosis.owners import Store, register, store_of
from devicekit.diagnosis.search import Origin, Search, holds, short
from devicekit.diagnosis.source import Fix, binding_of, stores_of
from devicekit.diagnosis.tensors import devices_of, tensors_of

__all__ = ["bringing", "contains", "inside", "is_assignable", "search_in", "trace"]

_MANY_STEPS = 12
_LEFT_BEHIND = ".to() leaves it behind"


def search_in(calls: list[Call], target: torch.device, shown: str) -> Search:
    """Begin a search in some frames."""
    return Search(calls, target, shown, trace)


def trace(search: Search, value: Any, node: ast.AST, at: int = 0) -> Origin | None:
    """Find out what an expression of a frame is whose value is on the wrong device.

    Args:
        search: The frames.
        value: What the expression is bound to.
        node: The expression: a name, an attribute, an item.
        at: Which of the frames.
    """
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
    return None


def inside(search: Search, module: nn.Module, off: Sequence[tuple[str, Tensor]]) -> Origin:
    """Some tensors that a module has registered are off, while the others are not."""
    path, tensor = off[0]
    word = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
    what = f"{word} of {type(module).__name__}, which is otherwise on {search.target}"
    place, root = search.outermost(tensor, 0, path.partition(".")[0])
    return Origin(what, Fix(f"{root}.to({search.quoted})", place))


# Attributes and items


def _item(search: Search, value: Any, node: ast.Subscript, at: int) -> Origin | None:
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        base = base.value
    holder = lookup(base, search.calls[at])
    if has_type(holder, nn.Module):
        word = "layer" if has_type(value, nn.Module) else "parameter"
        return _registered(search, value, node, at, word)
    return search.follow(search, holder, base, at)


def _attribute(search: Search, value: Any, node: ast.Attribute, at: int) -> Origin | None:
    owner = lookup(node.value, search.calls[at])
    if owner is MISSING:
        return None
    if has_type(owner, Tensor):  # x.T, x.grad: what x is
        return search.follow(search, owner, node.value, at)
    if has_type(owner, ModuleType):
        return use(search, node, at, f"global of {owner.__name__}: nothing moves it")
    made = _made_by_method(search, node, at)
    if made is not None:
        return made
    own = instance_dict(owner)
    if not has_type(owner, nn.Module):
        if node.attr not in own or has_type(owner, type):
            cls = owner if has_type(owner, type) else type(owner)
            return use(search, node, at, f"attribute of the class {cls.__name__}")
        name = ast.unparse(node)
        return Origin(
            f"attribute of {type(owner).__name__}",
            moving(search, value, name, search.before(at)),
        )
    for registry, word in (
        ("_parameters", "parameter"),
        ("_buffers", "buffer"),
        ("_modules", "layer"),
    ):
        if node.attr in (own.get(registry) or ()):
            return _registered(search, value, node, at, word)
    if node.attr not in own:
        return use(search, node, at, f"attribute of the class {type(owner).__name__}")
    return _unregistered(search, owner, value, node, at)


def _made_by_method(search: Search, node: ast.Attribute, at: int) -> Origin | None:
    """An attribute that the running method has assigned itself, as in a lazy cache."""
    call = search.calls[at]
    if call.function is None or call.code.co_name == "__init__":
        return None
    stores = [one for one in stores_of(call.function, node.attr) if one.lineno <= call.line]
    if not stores or stores[-1].value is None:
        return None
    return _assigned(search, stores[-1], stores[-1].value, node, at)


def _registered(
    search: Search, value: Any, node: ast.Attribute | ast.Subscript, at: int, word: str
) -> Origin | None:
    owner = lookup(node.value, search.calls[at])
    devices = devices_of(tensor for _, tensor in tensors_of(owner, ""))
    if search.target not in devices:  # all of the owner is off: what is the owner?
        found = search.follow(search, owner, node.value, at)
        if found is not None:
            return found
    place, path = search.outermost(value, at, ast.unparse(node.value))
    rest = f", which is otherwise on {search.target}" if search.target in devices else ""
    return Origin(
        f"{word} of {type(owner).__name__}{rest}", Fix(f"{path}.to({search.quoted})", place)
    )


def _unregistered(
    search: Search, owner: nn.Module, value: Any, node: ast.Attribute, at: int
) -> Origin:
    name = type(owner).__name__
    path = ast.unparse(node)
    if has_type(value, Tensor):
        what = f"plain attribute of {name}: {_LEFT_BEHIND}"
    elif has_type(value, nn.Module):
        what = f"layer that {name} has not registered: {_LEFT_BEHIND}"
    elif has_type(value, list | tuple | dict | set):
        what = f"in a plain {type(value).__name__} of {name}: {_LEFT_BEHIND}"
    else:
        what = f"in a {type(value).__name__} of {name}: {_LEFT_BEHIND}"
    store = store_of(owner, node.attr)
    fix = _store_mended(search, owner, value, node.attr, store) if store is not None else None
    return Origin(what, fix or moving(search, value, path, search.before(at)))


def _store_mended(
    search: Search, owner: nn.Module, value: Any, attribute: str, store: Store
) -> Fix | None:
    if store.is_in_init:
        place = search.instead(store.code.co_filename, store.statement)
        return register(owner, attribute, value, place, store)
    return None


# Names


def _name(search: Search, value: Any, node: ast.Name, at: int) -> Origin | None:
    call = search.calls[at]
    name = node.id
    if has_type(value, GENERATOR):
        return generator(search, value, name, at)
    if name in call.code.co_freevars:
        if call.code.co_name.startswith("<") and at + 1 < len(search.calls):
            outer = search.calls[at + 1]
            if outer.bound(name) is value:  # a comprehension's frame shows what is around it
                return search.follow(search, value, node, at + 1)
        return use(search, node, at, "variable of the enclosing function: nothing moves it")
    if name not in call.scope:
        return use(search, node, at, "global: nothing moves it")
    function = call.function
    if function is None:
        return _plain(search, value, name, at)
    if name in call.arguments():
        found = _argument(search, value, name, at)
        if found is not None:
            return found
    binding = binding_of(function, name, call.first_line)
    if binding is not None:
        return _bound(search, value, node, binding, at)
    what = f"argument of {call.name}" if name in call.arguments() else ""
    return _plain(search, value, name, at, what)


def is_assignable(name: str, call: Call) -> bool:
    """Say whether a line in a frame may assign to a name without hiding another variable."""
    if call.code.co_name == "<module>":
        return True
    return name in call.scope and name not in call.code.co_freevars


def _plain(search: Search, value: Any, name: str, at: int, what: str = "") -> Origin:
    """A variable of which nothing is known: move it in front of the statement."""
    if compat.is_loss(value) and not what:
        what = "the weights of the loss"
    fix = moving(search, value, name, search.before(at))
    return Origin(what, fix, name if at == 0 else None)


def _argument(search: Search, value: Any, name: str, at: int) -> Origin | None:
    """Go on in the caller, where the argument has another name."""
    above = _caller(search, value, at)
    if above is None:
        return None
    caller = search.calls[above]
    for mention in bringing(caller, value):
        found = search.follow(search, mention.value, mention.node, above)
        if found is None:
            continue
        if name in ("self", mention.path):
            return Origin(found.what, found.fix)
        what = f"`{mention.path}` of {caller.name}"
        return Origin(f"{what}, {found.what}" if found.what else what, found.fix)
    given = _given(search.calls[at], name, caller.expression)
    if isinstance(given, ast.Call) and isinstance(value, Tensor):
        return made_by(search, given, caller.statement, above)
    return None


def _caller(search: Search, value: Any, at: int) -> int | None:
    """The frame that passed a value on: past libraries, in which the user types nothing."""
    calls = search.calls
    if at + 1 == len(calls):
        return None
    if calls[at].is_peer or not calls[at + 1].is_peer:
        return at + 1
    own = (index for index in range(at + 1, len(calls)) if not calls[index].is_peer)
    return next((index for index in own if bringing(calls[index], value)), None)


def bringing(call: Call, value: Any) -> list[Mention]:
    """What a frame mentions that is a value, or holds it."""
    found = mentions(call.expression, call) if call.expression is not None else []
    return [one for one in found if one.value is value or contains(one.value, value)]


def _given(call: Call, name: str, expression: ast.expr | None) -> ast.expr | None:
    """The expression in a call that an argument was bound to."""
    if not isinstance(expression, ast.Call):
        return None
    for keyword in expression.keywords:
        if keyword.arg == name:
            return keyword.value
    names = call.arguments()
    index = names.index(name) - (names[0] in ("self", "cls"))
    given = expression.args
    if not 0 <= index < len(given) or any(isinstance(one, ast.Starred) for one in given):
        return None
    return given[index]


def contains(candidate: Any, value: Any, depth: int = 3) -> bool:
    """Whether something mentioned holds a value: directly, or in nested lists and dicts."""
    if has_type(candidate, nn.Module):
        return has_type(value, nn.Module) and holds(candidate, value)
    if has_type(candidate, functools.partial):
        items: Sequence[Any] = [*candidate.args, *candidate.keywords.values()]
    elif has_type(candidate, dict):
        items = list(candidate.values())
    elif has_type(candidate, list | tuple):
        items = candidate
    else:
        return False
    if any(one is value for one in items):
        return True
    return depth > 0 and any(contains(one, value, depth - 1) for one in items)


def _bound(search: Search, value: Any, node: ast.Name, binding: ast.AST, at: int) -> Origin | None:
    call = search.calls[at]
    if isinstance(binding, ast.For | ast.AsyncFor | ast.comprehension):
        return _loop_variable(search, value, node, binding, at)
    if not isinstance(binding, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        return _plain(search, value, node.id, at)
    assert binding.value is not None
    loader = loader_in(binding.value, call)
    if loader is not None and isinstance(binding, ast.Assign):
        place = search.place("after", binding.end_lineno or 0, call.file)
        return _batch(search, node.id, binding.targets[0], loader, place, at)
    if isinstance(value, nn.Module | Optimizer) or isinstance(binding, ast.NamedExpr):
        return _plain(search, value, node.id, at)
    targets = binding.targets if isinstance(binding, ast.Assign) else [binding.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return _plain(search, value, node.id, at)
    return _assigned(search, binding, binding.value, node, at)


def _loop_variable(
    search: Search,
    value: Any,
    node: ast.Name,
    loop: ast.For | ast.AsyncFor | ast.comprehension,
    at: int,
) -> Origin | None:
    call = search.calls[at]
    if isinstance(loop, ast.comprehension) and ".0" in call.scope and at + 1 < len(search.calls):
        at += 1  # the first iterable of a comprehension is evaluated around it
        call = search.calls[at]
    loader = loader_in(loop.iter, call)
    if loader is not None and isinstance(loop, ast.For | ast.AsyncFor):
        place = search.place("before", loop.body[0].lineno, call.file)
        return _batch(search, node.id, loop.target, loader, place, at)
    for mention in mentions(loop.iter, call):
        if has_type(mention.value, nn.Module):
            if holds(mention.value, value):
                place, path = search.outermost(value, at, mention.path)
                what = f"in {mention.path}"
                return Origin(what, Fix(f"{path}.to({search.quoted})", place))
        elif contains(mention.value, value):
            found = search.follow(search, mention.value, mention.node, at)
            if found is not None:
                return Origin(_at_path(mention.path, mention.value, value, found.what), found.fix)
    if isinstance(loop, ast.comprehension):
        return use(search, node, at, "loop variable")
    return _plain(search, value, node.id, at)


def _at_path(path: str, container: Any, value: Any, what: str) -> str:
    """The item of a container that a loop variable stands for, in words."""
    items = container.items() if has_type(container, dict) else enumerate(container)
    key = next((key for key, one in items if one is value), None)
    name = path if key is None else f"{path}[{key!r}]"
    return f"`{name}`, {what}" if what else f"`{name}`"


def _batch(search: Search, name: str, target: ast.expr, loader: str, place: str, at: int) -> Origin:
    bound = ast.unparse(target)
    if isinstance(target, ast.Tuple):
        bound = bound.removeprefix("(").removesuffix(")")
        code = f"{bound} = devicekit.to_device(({bound}), {search.quoted})"
    else:
        code = f"{bound} = devicekit.to_device({bound}, {search.quoted})"
    return Origin(
        f"from the DataLoader `{loader}`, which yields CPU tensors",
        Fix(code, place),
        name if at == 0 else None,
        is_batch=True,
    )


def _assigned(
    search: Search, statement: ast.stmt, made: ast.expr, node: ast.expr, at: int
) -> Origin | None:
    """A variable or attribute with an assignment of its own: look at what is assigned."""
    call = search.calls[at]
    name = node.id if isinstance(node, ast.Name) and at == 0 else None
    value = lookup(node, call)
    if factory_in(made, call) is None:
        base = spine(made)
        origin = lookup(base, call)
        if _is_off(origin, search) and ast.unparse(base) != ast.unparse(node):
            found = search.follow(search, origin, base, at)
            if found is not None:
                what = f"from `{ast.unparse(base)}`"
                return Origin(f"{what}, {found.what}" if found.what else what, found.fix)
        for mention in mentions(made, call):  # what a partial function was given
            if _is_off(mention.value, search) and contains(value, mention.value):
                return search.follow(search, mention.value, mention.node, at)
    found = made_by(search, made, statement, at)
    if found is not None and has_type(value, Tensor):
        return Origin(found.what, found.fix, name)
    what = f"made by {short(ast.unparse(made))}"
    return Origin(what, moving(search, value, ast.unparse(node), search.before(at)), name)


def _is_off(value: Any, search: Search) -> bool:
    return has_type(value, Tensor) and value.device != search.target
