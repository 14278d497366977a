"""What `import devicekit` costs and shows, and which module may import which."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import devicekit

PACKAGE = Path(devicekit.__file__).parent

# From the ground up: a module may import from its own floor and from those below it.
FLOORS = (
    {"errors", "records", "compat", "archs", "children", "driver", "units"},
    {"probe"},
    {"tree", "device"},
    {"move", "pin", "packing"},
    {"prefetch", "guards", "diagnosis"},
    {"loader", "env", "monitor"},
    {"cli", "__main__", "testing"},
)
FLOOR_OF = {name: number for number, names in enumerate(FLOORS) for name in names}


def in_a_fresh_process(code: str) -> dict:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_the_import_takes_no_torch_and_no_time() -> None:
    code = f"""
import json, sys, time
sys.path.insert(0, {str(PACKAGE.parent)!r})
start = time.process_time()  # other processes may be running
import devicekit
seconds = time.process_time() - start
print(json.dumps({{"seconds": seconds, "torch": "torch" in sys.modules}}))
"""
    runs = [in_a_fresh_process(code) for _ in range(5)]
    assert not any(run["torch"] for run in runs)
    assert min(run["seconds"] for run in runs) < 0.050


@pytest.mark.parametrize(
    "module", ["devicekit.errors", "devicekit.testing", "devicekit.testing.plugin"]
)
def test_these_import_no_torch(module: str) -> None:
    code = f"""
import json, sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
import {module}
print(json.dumps("torch" in sys.modules))
"""
    assert in_a_fresh_process(code) is False


# --- The public names.


def names_for_type_checkers(path: Path) -> dict[str, str]:
    """The names that are imported under `if TYPE_CHECKING`, and the modules they come from."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return {
                alias.asname or alias.name: statement.module
                for statement in node.body
                if isinstance(statement, ast.ImportFrom)
                for alias in statement.names
            }
    raise AssertionError(f"no `if TYPE_CHECKING` in {path}")


def test_type_checkers_see_the_names_that_there_are() -> None:
    seen = names_for_type_checkers(PACKAGE / "__init__.py")
    assert seen == {name: f"devicekit.{module}" for name, module in devicekit._HOME.items()}


@pytest.mark.parametrize("name", sorted(devicekit._HOME))
def test_every_public_name_is_there_and_says_so(name: str) -> None:
    module = import_module(f"devicekit.{devicekit._HOME[name]}")
    assert getattr(devicekit, name) is getattr(module, name)
    assert name in module.__all__
    assert getattr(devicekit, name).__doc__
    assert name in dir(devicekit)


def test_all_is_complete_and_sorted() -> None:
    assert devicekit.__all__ == ["__version__", *sorted(devicekit._HOME)]
    assert list(devicekit._HOME) == sorted(devicekit._HOME)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'devicekit' has no attribute 'Devise'"):
        _ = devicekit.Devise


# --- The modules.


def modules() -> list[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [file.relative_to(PACKAGE).as_posix() for file in files]


def test_every_module_has_a_floor() -> None:
    top = {path.partition("/")[0].removesuffix(".py") for path in modules()} - {"__init__"}
    assert top == set(FLOOR_OF)


@pytest.mark.parametrize("path", modules())
def test_imports_never_run_upwards(path: str) -> None:
    own = path.partition("/")[0].removesuffix(".py")
    if own == "__init__":
        return  # it resolves the names of all floors, on first use
    upwards = {
        f"{path}:{line} imports devicekit.{other}"
        for line, other in imports_of(PACKAGE / path)
        if FLOOR_OF[other] > FLOOR_OF[own]
    }
    assert not upwards


def imports_of(path: Path) -> list[tuple[int, str]]:
    """The parts of devicekit that a module imports, wherever in it, except for annotations."""
    found = []
    for node in running_nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "devicekit" and len(parts) > 1 and parts[1] in FLOOR_OF:
                found.append((node.lineno, parts[1]))
    return found


def running_nodes(node: ast.AST):
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from running_nodes(child)


def test_the_floors_would_notice(tmp_path: Path) -> None:
    file = tmp_path / "probe.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from devicekit.cli import main\n"
        "from devicekit import loader\n"
        "def f():\n    import devicekit.move.fast\n    from devicekit.tree import find\n"
    )
    assert imports_of(file) == [(4, "loader"), (6, "move"), (7, "tree")]


@pytest.mark.parametrize("package", ["devicekit", "devicekit.testing"])
def test_no_module_is_named_like_a_public_name(package: str) -> None:
    # `package.name` would be the module or the function, depending on which import came last.
    module = import_module(package)
    assert module.__file__ is not None
    children = {child.stem for child in Path(module.__file__).parent.iterdir()}
    assert not set(module.__all__) & children


@pytest.mark.parametrize("path", modules())
def test_only_compat_and_testing_name_private_parts_of_torch(path: str) -> None:
    if path == "compat.py" or path.startswith("testing/"):
        return
    assert not private_names(ast.parse((PACKAGE / path).read_text()))


def private_names(tree: ast.AST) -> list[str]:
    """What the code takes from torch, or from a part of it, that begins with an underscore."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = ast.unparse(node).split(".")
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        else:
            continue
        private = [name for name in names if name.startswith("_") and not name.endswith("__")]
        if names[0] == "torch" and private:
            found.append(".".join(names))
    return found


def test_private_names_would_be_noticed() -> None:
    tree = ast.parse(
        "from torch.utils import _pytree\nimport torch\ntorch._C.x\ntorch.ones.__doc__"
    )
    assert set(private_names(tree)) == {"torch.utils._pytree", "torch._C.x", "torch._C"}


@pytest.mark.parametrize("path", modules())
def test_module_all_is_sorted_and_true(path: str) -> None:
    tree = ast.parse((PACKAGE / path).read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            if not isinstance(node.value, ast.List):
                return
            try:
                names = ast.literal_eval(node.value)
            except ValueError:
                return  # put together at run time
            assert len(set(names)) == len(names)
            assert names == sorted(names, key=isort_key)
            return


def isort_key(name: str) -> tuple[int, str]:
    """The order of ruff's rule RUF022: constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
