"""What will fail later in a model, found without running it."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from devicekit.device import Device
from devicekit.diagnosis.carrying import carried, held, is_copy, name_of, was_parameter
from devicekit.diagnosis.findings import Audit, Finding
from devicekit.diagnosis.movers import moves, states_of
from devicekit.diagnosis.owners import register, store_of
from devicekit.diagnosis.source import lines_of
from devicekit.diagnosis.tensors import describe, is_free
from devicekit.tree import find_tensors
from devicekit.tree.find import member_step

__all__ = ["audit"]

_REGISTRIES = ("_parameters", "_buffers", "_modules")
_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)


def audit(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    device: str | int | torch.device | None = None,
) -> Audit:
    """List what will fail in a model because of devices, without running it.

    Finds tensors and layers that `.to()` leaves behind (in plain attributes, lists, hooks),
    parameters still on `meta`, parts on another device than the rest, parameters that `.to()`
    turned into plain tensors, optimizers that hold other parameters than the model or state on
    another device, and ties that were broken.

    Args:
        model: The model.
        optimizer: Its optimizer.
        device: The device that all should be on; by default the one that most of it is on.

    Returns:
        A report that can be printed and iterated, and is false when nothing was found.

    Raises:
        TypeError: `model` is no module, or `optimizer` no optimizer.

    Example:
        >>> import torch
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scale = torch.ones(3)
        >>> for finding in audit(Net()):
        ...     print(finding.path, "is a", finding.what)
        model.scale is a plain attribute of Net: .to() leaves it behind
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a module, but is {reprlib.repr(model)}")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"`optimizer` must be an optimizer or None, but is {reprlib.repr(optimizer)}"
        )
    target = Device(device).torch if device is not None else _majority(model)
    scan = _Scan(model, target, demanded=device is not None)
    findings = [*scan.registered(), *scan.loose(), *scan.ties()]
    if optimizer is not None:
        findings += scan.optimizer(optimizer)
    name = type(model).__name__
    return Audit(name, None if target is None else str(target), tuple(findings))


def _majority(model: nn.Module) -> torch.device | None:
    """The device of most tensors; the model's parts on `meta` do not count beside others."""
    counted = Counter(t.device for _, t in find_tensors(model) if not is_free(t))
    real = Counter({d: n for d, n in counted.items() if d.type != "meta"})
    most = (real or counted).most_common(1)
    return most[0][0] if most else None


class _Attribute(NamedTuple):
    """An attribute that a module has not registered: the module, its path, and the name."""

    owner: nn.Module
    path: str
    name: str

    @property
    def value(self) -> Any:
        """What it holds."""
        return vars(self.owner)[self.name]


class _Scan:
    """One look over a model."""

    def __init__(self, model: nn.Module, target: torch.device | None, demanded: bool) -> None:
        self.model = model
        self.target = target
        self.demanded = demanded
        self.paths = dict(_modules(model))
        self.names = {id(tensor): path for path, tensor in find_tensors(model, name="model")}
        self.registered_modules = {id(module) for module in self.paths.values()}
        self.is_dispatched = any(
            "_hf_hook" in vars(module) or "hf_device_map" in vars(module)
            for module in self.paths.values()
        )

    # What is registered

    def registered(self) -> Iterator[Finding]:
        """Parameters and buffers on another device, or still on `meta`."""
        if self.target is None or self.is_dispatched:
            return
        yield from self._off(self.model, "model")
        yield from self._states()

    def _states(self) -> Iterator[Finding]:
        """Modules that move their states themselves, as metrics do, and did not get the call."""
        for path, module in self.paths.items():
            devices = {tensor.device for tensor in states_of(module)}
            if len(devices) != 1 or self.target in devices:
                continue
            own = (one for _, one in find_tensors(module) if not is_free(one))
            if any(one.device != self.target for one in own):
                continue  # reported with its parameters
            device = str(devices.pop())
            rest = "" if path == "model" else f", the rest is on {self.target}"
            what = f"{type(module).__name__}: states that it moves itself{rest}"
            yield Finding("device", path, device, what, f'{path}.to("{self.target}")')

    def _off(self, module: nn.Module, path: str) -> Iterator[Finding]:
        found = [(p, t) for p, t in find_tensors(module, name=path) if not is_free(t)]
        devices = list(dict.fromkeys(tensor.device for _, tensor in found))
        if not devices or devices == [self.target]:
            return
        children = list(_children(module, path))
        if len(devices) == 1 and (children or len(found) > 1):
            yield self._misplaced(path, devices[0], describe(module), module)
            return
        inside = {id(t) for p, m in children for _, t in find_tensors(m, name=p)}
        for own_path, tensor in found:
            if id(tensor) not in inside and tensor.device != self.target:
                word = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                yield self._misplaced(
                    own_path, tensor.device, f"{word}, {describe(tensor)}", tensor
                )
        for child_path, child in children:
            yield from self._off(child, child_path)

    def _misplaced(self, path: str, device: torch.device, what: str, value: object) -> Finding:
        if device.type == "meta":
            owner = path if isinstance(value, nn.Module) else path.rpartition(".")[0] or "model"
            return Finding(
                "meta",
                path,
                "meta",
                f"{what}: there is no data in it",
                f'{owner}.to_empty(device="{self.target}")  # then load or initialise its values',
            )
        rest = "" if path == "model" else f", the rest is on {self.target}"
        return Finding("device", path, str(device), what + rest, f'model.to("{self.target}")')

    # What is not registered

    def loose(self) -> Iterator[Finding]:
        """Tensors and layers that a module holds without having registered them."""
        for path, module in self.paths.items():
            for name, value in vars(module).items():
                if name in _HOOKS:
                    yield from self._hooks(f"{path}.{name}", value)
                elif name not in _REGISTRIES and not name.startswith("__"):
                    yield from self._attribute(_Attribute(module, path, name))

    def _attribute(self, attribute: _Attribute) -> Iterator[Finding]:
        module, value = attribute.owner, attribute.value
        where = f"{attribute.path}.{attribute.name}"
        if moves(module, attribute.name, is_root=module is self.model):
            return
        if isinstance(value, Tensor):
            if was_parameter(value, self.names):
                yield self._detached(where, value)
            elif self._is_left(value):
                what = f"plain attribute of {type(module).__name__}: .to() leaves it behind"
                yield self._left("attribute", where, value, what, attribute)
            return
        plain = f"in a plain {type(value).__name__} of {type(module).__name__}"
        for inner, one in held(value, where):
            if isinstance(one, nn.Module):
                tensor = self._left_in(one)
                if tensor is not None:
                    what = f"{describe(one)}, {plain}: .to() leaves it behind"
                    yield self._left("layer", inner, tensor, what, attribute)
            elif self._is_left(one):
                what = f"{plain}: .to() leaves it behind"
                yield self._left("container", inner, one, what, attribute)

    def _is_left(self, tensor: Tensor) -> bool:
        """Whether a tensor that is not registered will meet others on another device."""
        if is_free(tensor) or id(tensor) in self.names or tensor.grad_fn is not None:
            return False
        if self.target is None or self.target.type == "cpu":
            return True  # all is well until the model moves
        return tensor.device != self.target

    def _left_in(self, layer: nn.Module) -> Tensor | None:
        """The first tensor of a layer that is not registered, if it will meet others."""
        if id(layer) in self.registered_modules:
            return None
        tensors = [tensor for _, tensor in find_tensors(layer) if not is_free(tensor)]
        tensors += [tensor for one in nn.Module.modules(layer) for tensor in states_of(one)]
        return tensors[0] if any(self._is_left(tensor) for tensor in tensors) else None

    def _left(
        self, kind: str, path: str, tensor: Tensor, what: str, attribute: _Attribute
    ) -> Finding:
        return Finding(kind, path, str(tensor.device), what, self._fix(attribute))

    def _fix(self, attribute: _Attribute) -> str:
        owner, where, name = attribute
        value = attribute.value
        store = store_of(owner, name)
        if store is not None and store.is_in_init:
            file = store.code.co_filename.replace("\\", "/").rpartition("/")[2]
            place = f"instead of {lines_of(store.statement)} of {file}"
            fix = register(owner, name, value, place, store)
            if fix is not None:
                return str(fix)
        if isinstance(value, Tensor):
            return (
                f'{where}.register_buffer("{name}", {where}.__dict__.pop("{name}"), '
                "persistent=False)"
            )
        target = "cpu" if self.target is None else str(self.target)
        return f'{where}.{name} = devicekit.to_device({where}.{name}, "{target}")'

    def _detached(self, path: str, tensor: Tensor) -> Finding:
        return Finding(
            "detached",
            path,
            str(tensor.device),
            "was a Parameter: .to() made a plain tensor of it, which is not trained or saved",
            f"{path} = torch.nn.Parameter({path}.detach())",
        )

    def _hooks(self, path: str, hooks: dict[int, Any]) -> Iterator[Finding]:
        for key, hook in hooks.items():
            for name, tensor in carried(hook):
                if self._is_left(tensor):
                    yield Finding(
                        "hook",
                        f"{path}[{key}]",
                        str(tensor.device),
                        f"the hook {name_of(hook)} carries {name}, {describe(tensor)}: "
                        ".to() leaves it behind",
                        f"{name}.to(...)  # in the hook, with the device of its input",
                    )

    # Optimizers

    def optimizer(self, optimizer: Optimizer) -> Iterator[Finding]:
        """Parameters that the model no longer has, and state that is elsewhere."""
        held = [
            (f"optimizer.param_groups[{number}]['params'][{index}]", parameter)
            for number, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        ]
        known = {id(parameter) for _, parameter in held}
        missing: list[tuple[str, Tensor]] = [
            (path, parameter)
            for path, parameter in find_tensors(self.model, name="model")
            if isinstance(parameter, nn.Parameter)
            and parameter.requires_grad
            and id(parameter) not in known
        ]
        for path, parameter in held:
            if id(parameter) not in self.names:
                yield from self._stale(path, parameter, missing, optimizer)
            yield from self._state(path, parameter, optimizer)

    def _stale(
        self,
        path: str,
        parameter: Tensor,
        missing: list[tuple[str, Tensor]],
        optimizer: Optimizer,
    ) -> Iterator[Finding]:
        for index, (name, candidate) in enumerate(missing):
            if candidate.shape == parameter.shape and candidate.dtype == parameter.dtype:
                del missing[index]
                kind = type(optimizer).__name__
                yield Finding(
                    "optimizer",
                    path,
                    str(parameter.device),
                    f"is not {name} any more: the optimizer was made before a move that "
                    "replaced the parameters, and trains nothing",
                    f"optimizer = torch.optim.{kind}(model.parameters(), ...)  # after model.to()",
                )
                return

    def _state(self, path: str, parameter: Tensor, optimizer: Optimizer) -> Iterator[Finding]:
        name = self.names.get(id(parameter), path)
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor) or is_free(value):
                continue
            if value.device != parameter.device:
                yield Finding(
                    "state",
                    f"optimizer.state[{name}][{key!r}]",
                    str(value.device),
                    f"{describe(value)}, while {name} is on {parameter.device}",
                    f'devicekit.to_device(optimizer, "{parameter.device}")',
                )

    # Ties

    def ties(self) -> Iterator[Finding]:
        """Weights that were one, and are two with the same values."""
        embeddings = [
            (path, module)
            for path, module in self.paths.items()
            if isinstance(module, nn.Embedding)
        ]
        heads = [
            (path, module) for path, module in self.paths.items() if isinstance(module, nn.Linear)
        ]
        for embedding_path, embedding in embeddings:
            for head_path, head in heads:
                if is_copy(embedding.weight, head.weight):
                    yield Finding(
                        "tie",
                        f"{head_path}.weight",
                        str(head.weight.device),
                        f"has the values of {embedding_path}.weight, but is no longer the same "
                        "parameter: a move broke the tie",
                        f"{head_path}.weight = {embedding_path}.weight",
                    )


def _modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules, each with the first expression that leads to it."""
    seen: set[int] = set()
    pending: list[tuple[str, nn.Module]] = [("model", model)]
    while pending:
        path, module = pending.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield path, module
        pending.extend(reversed(list(_children(module, path))))


def _children(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in vars(module)["_modules"].items():
        if child is not None:
            step = member_step(module, name)
            yield f"{step.before}{path}{step.after}", child
