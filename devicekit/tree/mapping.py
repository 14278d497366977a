"""Mapping a function over the tensors of a structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from torch import Tensor

from devicekit.errors import MoveError
from devicekit.tree.anatomy import Container, attributes_of, set_attributes
from devicekit.tree.containers import ATOMS, container_of
from devicekit.tree.describe import describe
from devicekit.tree.steps import NO_KEY, Step

__all__ = ["copy_containers", "map_tensors", "mapped_in_two_steps"]

T = TypeVar("T")


def _at(path: str, x: object) -> str:
    return f"at {path} ({describe(x)})"


def map_tensors(
    data: T,
    fn: Callable[[Tensor], Tensor],
    *,
    other: Callable[[object], object] | None = None,
    name: str = "data",
    note: Callable[[str, object], str] = _at,
    skip: Callable[[Step, Callable[[], str]], bool] | None = None,
    memo: dict[int, Any] | None = None,
    stand_ins: bool = False,
) -> T:
    """Rebuild `data` with `fn` applied to each tensor in it.

    No constructor runs and the caller's objects are not changed. A container in which nothing
    changed is returned itself, at every level. Each tensor is mapped once, however often it is
    there; two names for one object stay two names for one object; cycles and any depth are fine.

    Args:
        data: Anything.
        fn: Gives the new tensor for a tensor, or the same one.
        other: The same for objects that the walker does not look into: modules, optimizers, objects
            with a method `to`, any class that is no container. By default they stay as they are.
        name: The name of `data` in notes on errors.
        note: From the path and the object at which an error was raised, the note to add to it.
        skip: Says of a child whether to leave it as it is, from its last step and a function that
            writes its path.
        memo: Results for objects that were mapped before, by `id`; those of this call are added.
        stand_ins: Whether `fn` gives something else in the place of tensors. Then containers that
            may look at it, such as sets and registered types, go to `other`.

    Raises:
        Exception: Whatever `fn` and `other` raise, with a note that says where.

    Example:
        >>> import torch
        >>> map_tensors({"x": torch.ones(2), "y": [1, "a"]}, lambda t: t * 2)
        {'x': tensor([2., 2.]), 'y': [1, 'a']}
    """
    walk = _Walk(fn, other or _same, name, note, skip, memo, stand_ins=stand_ins)
    return cast(T, walk.run(data)())


def mapped_in_two_steps(
    data: T,
    fn: Callable[[Tensor], Tensor],
    *,
    other: Callable[[object], object] | None = None,
    name: str = "data",
    note: Callable[[str, object], str] = _at,
    skip: Callable[[Step, Callable[[], str]], bool] | None = None,
    memo: dict[int, Any] | None = None,
) -> Callable[[], T]:
    """As `map_tensors`, but rebuild `data` only when the function that is returned is called.

    For tensors that have no values yet when `fn` returns them: what is rebuilt may look at them.
    """
    walk = _Walk(fn, other or _same, name, note, skip, memo)
    return cast("Callable[[], T]", walk.run(data))


def copy_containers(x: T) -> T:
    """Give an object containers of its own: copies of those in its attributes, at every depth."""
    walk = _Walk(_same, _same, "x", _at, None, None, copy=True)
    set_attributes(x, cast("dict[str, Any]", walk.run(attributes_of(x))()))
    return x


def _same(x: Any) -> Any:
    return x


class _Node:
    """A container in the graph of containers. It refers downwards only, so that it dies in time."""

    __slots__ = ("_steps", "changed", "children", "container", "original", "sources", "twin")

    def __init__(self, original: Any, container: Container) -> None:
        self.original = original
        self.container = container
        self.sources: list[Any] = container.children(original)  # keeps them alive: their ids count
        self.children: list[Any] = []  # the new ones, as far as done; a _Node for a container
        self.changed = False
        self.twin: Any = _UNMADE
        self._steps: list[Step] | None = None

    def step(self, i: int) -> Step:
        """The way to child number `i`."""
        if self._steps is None:
            self._steps = self.container.steps(self.original)
        return self._steps[i]


_UNMADE = object()
_IN_WORK = object()
_ROOT = Container(
    children=lambda x: [x],
    steps=lambda x: [Step(NO_KEY, "")],
    make=lambda x, values: values,
    fill=lambda x, twin, values: None,
)


class _Walk:
    """One call of `map_tensors`: discover the graph and map its leaves, then rebuild what changed.

    Rebuilding waits until all is known: in a cycle, a container that looked unchanged when it was
    left may contain one that changes later.
    """

    def __init__(
        self,
        fn: Callable[[Tensor], Tensor],
        other: Callable[[object], object],
        name: str,
        note: Callable[[str, object], str],
        skip: Callable[[Step, Callable[[], str]], bool] | None,
        memo: dict[int, Any] | None,
        *,
        stand_ins: bool = False,
        copy: bool = False,
    ) -> None:
        self.fn = fn
        self.other = other
        self.name = name
        self.note = note
        self.skip = skip
        self.memo = {} if memo is None else memo
        self.stand_ins = stand_ins
        self.copy = copy  # whether containers are rebuilt even if nothing in them changed
        self.nodes: dict[int, _Node] = {}  # by the id of the container
        # Where it is: in which, as which child.
        self.places: dict[int, list[tuple[_Node, int]]] = {}

    def run(self, data: object) -> Callable[[], object]:
        """Map the leaves; return the function that rebuilds what changed."""
        root = _Node(data, _ROOT)
        order = self.discover(root)
        self.spread_changes(order)

        def build() -> object:
            for node in order:
                if node.changed and node is not root:
                    self.rebuild(node)
            for node in self.nodes.values():
                self.memo[id(node.original)] = node.twin if node.changed else node.original
            return self.values(root)[0]

        return build

    def discover(self, root: _Node) -> list[_Node]:
        """All containers, each after those in it (except in cycles), with their leaves mapped."""
        order: list[_Node] = []
        stack = [root]
        while stack:
            found = self.map_children(stack[-1])
            if found is None:
                order.append(stack.pop())
            else:
                stack.append(found)
        return order

    def map_children(self, node: _Node) -> _Node | None:
        """Go on with the children of a container, up to one that is a container itself."""
        memo = self.memo
        done = node.children
        for i in range(len(done), len(node.sources)):
            child = node.sources[i]
            cls = type(child)
            if cls in ATOMS or (self.skip is not None and self.is_skipped(node, i)):
                done.append(child)
                continue
            key = id(child)
            if key not in memo:
                if key in self.nodes:
                    self.places[key].append((node, i))
                    done.append(self.nodes[key])
                    continue
                container = container_of(cls)
                if container is not None and not (self.stand_ins and container.looks):
                    new = self.nodes[key] = _Node(child, container)
                    new.changed = self.copy
                    self.places[key] = [(node, i)]
                    done.append(new)
                    return new
                memo[key] = self.map_leaf(node, i, child)
            done.append(memo[key])
            if memo[key] is not child:
                node.changed = True
        return None

    def map_leaf(self, node: _Node, i: int, x: object) -> object:
        try:
            return self.fn(cast(Tensor, x)) if issubclass(type(x), Tensor) else self.other(x)
        except Exception as error:  # raised again at once: only a note is added
            error.add_note(self.note(self.path(node, i), x))
            raise

    def path(self, node: _Node, i: int) -> str:
        """The Python expression for child number `i` of a container."""
        steps = [node.step(i)]
        while node.container is not _ROOT:
            node, i = self.places[id(node.original)][0]
            steps.append(node.step(i))
        before = "".join(step.before for step in steps)
        return before + self.name + "".join(step.after for step in reversed(steps))

    def is_skipped(self, node: _Node, i: int) -> bool:
        assert self.skip is not None
        return self.skip(node.step(i), lambda: self.path(node, i))

    def spread_changes(self, order: list[_Node]) -> None:
        """A container with a changed child is changed too."""
        changed = [node for node in order if node.changed]
        while changed:
            for user, _ in self.places.get(id(changed.pop().original), ()):
                if not user.changed:
                    user.changed = True
                    changed.append(user)

    def rebuild(self, node: _Node) -> None:
        try:
            twin = self.make(node)
            node.container.fill(node.original, twin, self.values(node))
        except Exception as error:  # raised again at once: only a note is added
            path = self.path(*self.places[id(node.original)][0])
            error.add_note(self.note(path, node.original))
            raise

    def make(self, node: _Node) -> Any:
        """The twin of a changed container; a mutable one may still have to be filled."""
        if node.twin is _IN_WORK:
            raise MoveError(
                f"a {describe(node.original)} contains itself, and is of a type that cannot be "
                "made before its contents are: break the cycle, or keep the object outside the data"
            )
        if node.twin is _UNMADE:
            node.twin = _IN_WORK
            values = self.values(node) if node.container.immutable else []
            node.twin = node.container.make(node.original, values)
        return node.twin

    def values(self, node: _Node) -> list[Any]:
        """The new children of a container."""
        return [
            child
            if type(child) is not _Node
            else self.make(child)
            if child.changed
            else child.original
            for child in node.children
        ]
