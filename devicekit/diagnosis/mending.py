"""Lines of code that mend: a move in front of a statement, a device for what is made, a use."""

import ast
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.diagnosis.frames import MISSING, Call, has_type, lookup
from devicekit.diagnosis.making import call_of, factory_in, generator_in
from devicekit.diagnosis.search import Origin, Search, short
from devicekit.diagnosis.source import Fix, add_keyword, binding_of, insert, wrap

__all__ = ["generator", "made_by", "moving", "use"]


def moving(search: Search, value: Any, path: str, place: str) -> Fix:
    """The line that moves what an expression is bound to."""
    if has_type(value, nn.Module):
        return Fix(f"{path}.to({search.quoted})", place)
    if has_type(value, Optimizer):
        return Fix(f"devicekit.to_device({path}, {search.quoted})", place)
    if has_type(value, Tensor):
        move = ".cpu()" if search.target.type == "cpu" else f".to({search.quoted})"
        return Fix(f"{path} = {path}{move}", place)
    return Fix(f"{path} = devicekit.to_device({path}, {search.quoted})", place)


def made_by(search: Search, made: ast.expr, statement: ast.stmt | None, at: int) -> Origin | None:
    """An expression that makes a tensor: give it the device, or move what it makes."""
    call = search.calls[at]
    line = statement.lineno if statement is not None else call.line
    device = search.device_code(at, line)
    factory = factory_in(made, call)
    if factory is not None:
        text = add_keyword(call.file, factory, f"device={device}", statement)
        place = search.place("instead of", factory.end_lineno or 0, call.file)
        what = f"made by {short(ast.unparse(factory))} without device="
        return Origin(what, Fix(text, place))
    loaded = call_of(made, call, torch.load)
    if loaded is not None and not any(one.arg == "map_location" for one in loaded.keywords):
        text = add_keyword(call.file, loaded, f"map_location={device}", statement)
        place = search.place("instead of", loaded.end_lineno or 0, call.file)
        return Origin("loaded without map_location=", Fix(text, place))
    if not isinstance(made, ast.Call | ast.Attribute | ast.Name | ast.Subscript):
        return None
    text = insert(call.file, made, search.move(at, line), statement)
    place = search.place("instead of", made.end_lineno or 0, call.file)
    return Origin(f"made by {short(ast.unparse(made))}", Fix(text, place))


def generator(search: Search, value: torch.Generator, name: str, at: int) -> Origin:
    """A generator: give the call that made it a device, or make another."""
    what = "generator of another device"
    for index in range(at, len(search.calls)):
        call = search.calls[index]
        if call.bound(name) is not value or call.function is None:
            break
        binding = binding_of(call.function, name, call.first_line)
        made = generator_in(binding, call) if isinstance(binding, ast.Assign) else None
        if made is not None and isinstance(binding, ast.Assign):
            line = add_keyword(call.file, made, f"device={search.quoted}", binding)
            place = search.place("instead of", made.end_lineno or 0, call.file)
            return Origin(what, Fix(line, place))
    code = f"{name} = torch.Generator(device={search.quoted})"
    return Origin(what, Fix(code, search.before(at)))


def use(search: Search, node: ast.AST, at: int, what: str) -> Origin:
    """A name that must not be assigned here: mend the place where it is used."""
    call = search.calls[at]
    value = lookup(node, call)
    if has_type(value, nn.Module):
        return Origin(what, moving(search, value, ast.unparse(node), search.before(at)))
    used = _use_of(call, ast.unparse(node))
    if used is None or value is MISSING or used.lineno != used.end_lineno:
        return Origin(what, None)
    if has_type(value, Tensor):
        line = insert(call.file, used, search.move(at, call.line), call.statement)
    else:
        end = f", {search.device_code(at, call.line)})"
        line = wrap(call.file, used, "devicekit.to_device(", end, call.statement)
    return Origin(what, Fix(line, search.place("instead of", used.lineno, call.file)))


def _use_of(call: Call, wanted: str) -> ast.expr | None:
    for root in (call.expression, call.statement):
        for one in ast.walk(root) if root is not None else ():
            if isinstance(one, ast.expr) and ast.unparse(one) == wanted:
                return one
    return None
