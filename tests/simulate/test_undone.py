"""Leaving a simulation leaves torch as it was found."""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
import threading
import types
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import early_names
import pytest
import torch
from torch import nn

from devicekit.testing import simulate
from devicekit.testing.simulation import private, state

_FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType, property, types.ModuleType)


def attributes() -> dict[str, Any]:
    """Return every attribute of every module of torch, of the classes in there, and of ours."""
    found: dict[str, Any] = {}
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] not in ("torch", "early_names") or module is None:
            continue
        for attribute, value in [*vars(module).items()]:
            found[f"{name}.{attribute}"] = value
            if issubclass(type(value), type) and value.__module__.startswith("torch"):
                for inner, content in [*vars(value).items()]:
                    found[f"{value.__module__}.{value.__qualname__}.{inner}"] = content
    found |= {f"TensorBase.{k}": v for k, v in vars(torch._C.TensorBase).items()}
    found |= {f"BaseProcess.{k}": v for k, v in vars(BaseProcess).items()}
    pickled = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    found |= {f"pickled.{k}": v for k, v in pickled.items()}
    for attribute in ("config", "shown", "copy", "before_kernel", "allocated", "host_read"):
        found[f"state.{attribute}"] = getattr(state, attribute)
    return found


_ABSENT = object()


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return what is another object now; for plain values, what is not equal."""
    names = set()
    for name in before.keys() | after.keys():
        one, other = before.get(name, _ABSENT), after.get(name, _ABSENT)
        if one is other:
            continue
        # Counters and caches hold other values now; an attribute of ours would be a function.
        plain = isinstance(one, int | str | tuple | frozenset) and type(one) is type(other)
        if one != other if plain else isinstance(one, _FUNCTIONS) or type(one) is not type(other):
            names.add(name)
    return names


def use(name: str, **options: Any) -> None:
    """Do something in a simulation of each kind that a program does."""
    with simulate(name, **options):
        net = nn.Linear(4, 4).to(name)
        with torch.autocast(name, dtype=torch.bfloat16):
            net(torch.randn(2, 4, device=name)).sum().backward()
        torch.optim.Adam(net.parameters()).step()
        torch.accelerator.synchronize()
        if name == "cuda":
            torch.cuda.set_device(1)
            torch.cuda.manual_seed_all(3)
            torch.cuda.device_count()
            torch.cuda.memory_stats()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sim", {}),
        ("cuda", {}),
        ("cuda", {"count": 5, "async_copies": True, "memory": 1 << 30}),
    ],
    ids=["sim", "cuda", "cuda with options"],
)
def test_every_attribute_is_put_back(name: str, options: dict[str, Any]) -> None:
    use(name, **options)  # what torch imports and caches on first use is not ours
    before = attributes()
    with simulate(name, **options):
        during = attributes()
    use(name, **options)
    assert changed(before, attributes()) == set()
    assert len(changed(before, during)) > (40 if name == "sim" else 140)


def test_what_is_replaced_under_cudas_name() -> None:
    use("cuda")
    before = attributes()
    with simulate("cuda"):
        replaced = changed(before, attributes())
    assert {
        "torch.zeros",
        "torch.Tensor.to",
        "torch.Tensor.device",
        "torch.Tensor.is_cuda",
        "torch.compile",
        "torch._C._cuda_getDeviceCount",
        "torch.cuda.Stream",
        "torch.cuda._lazy_init",
        "torch.nn.functional.scaled_dot_product_attention",
        "early_names.zeros",
        "early_names.tensor",
        "state.shown",
    } <= replaced
    names = {x.removeprefix("torch.cuda.") for x in replaced if x.startswith("torch.cuda._")}
    assert names <= set(private.CUDA_STATE)
    # Torch's own Python code for CUDA runs as it is.
    assert "torch.cuda.is_available" not in replaced
    assert "torch.cuda.current_stream" not in replaced


@pytest.mark.parametrize("name", private.CUDA_STATE)
def test_state_of_torch_cuda_is_where_it_is_replaced(name: str) -> None:
    if name == "_get_device_properties":  # comes with the initialisation of a real device
        assert "_get_device_properties(device)" in inspect.getsource(
            torch.cuda.get_device_properties
        )
        return
    assert hasattr(torch.cuda, name)


@pytest.mark.parametrize("name", private.AUTOCAST_FUNCTIONS)
def test_functions_of_autocast_are_where_they_are_replaced(name: str) -> None:
    assert callable(getattr(torch._C, name))


def test_c_functions_are_those_that_torch_calls() -> None:
    from devicekit.testing.simulation.as_cuda import collectives, low_level

    folder = Path(torch.__file__).parent
    sources = [*folder.glob("cuda/*.py"), folder / "_dynamo" / "device_interface.py"]
    text = "".join(path.read_text() for path in sources)
    unused = {name for name in low_level.NAMESPACE if f"_cuda_{name}" not in text}
    assert unused == set()
    comm = (folder / "nn" / "parallel" / "comm.py").read_text()
    names = [name for name in vars(collectives) if name.startswith("_") and "cast" in name]
    assert names
    assert all(f"torch._C.{name}(" in comm for name in names)


def test_put_back_after_an_error() -> None:
    use("cuda")
    before = attributes()
    with pytest.raises(ZeroDivisionError), simulate("cuda"):
        1 / 0  # noqa: B018
    assert changed(before, attributes()) == set()


def test_put_back_when_a_simulation_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from devicekit.testing.simulation.as_cuda import collectives

    use("cuda")
    before = attributes()

    def fail(patches: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(collectives, "install", fail)
        with pytest.raises(OSError, match="no"):
            simulate("cuda")
        assert changed(before, attributes()) == set()
        with simulate() as outer:
            with pytest.raises(OSError, match="no"):
                simulate("cuda")
            assert torch.ones(2, device=outer.devices[1]).sum().item() == 2
    assert changed(before, attributes()) == set()


# ------------------------------------------------------------------ nested


def test_nested_under_the_same_name() -> None:
    with simulate("cuda", count=2):
        x = torch.ones(2, device="cuda")
        with simulate("cuda", count=3):
            assert torch.cuda.device_count() == 3
            assert torch.ones(2, device="cuda:2").sum().item() == 2
        assert torch.cuda.device_count() == 2
        assert (x + 1).tolist() == [2, 2]
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(2, device="cuda:2")
    assert not torch.cuda.is_available()


def test_nested_under_the_other_name() -> None:
    with simulate("cuda"):
        x = torch.ones(2, device="cuda:1")
        assert x.device.type == "cuda"
        with simulate("sim") as inner:
            assert not torch.cuda.is_available()
            y = torch.ones(2, device=inner.devices[0])
            assert (y.device.type, y.is_cuda) == ("sim", False)
            with simulate("cuda"):
                assert torch.ones(1, device="cuda").is_cuda
            assert (y + 1).device.type == "sim"
        assert (x + 1).device == torch.device("cuda:1")


def test_stopping_the_outer_one_ends_both() -> None:
    use("cuda")
    before = attributes()
    outer = simulate("cuda")
    inner = simulate("sim")
    outer.stop()
    inner.stop()
    assert changed(before, attributes()) == set()


def test_random_numbers_go_on_after_an_inner_simulation() -> None:
    with simulate("cuda"):
        torch.manual_seed(0)
        a = [torch.rand(1, device="cuda").item() for _ in range(2)]
        torch.manual_seed(0)
        b = [torch.rand(1, device="cuda").item()]
        with simulate("cuda"):
            torch.rand(5, device="cuda")
        b.append(torch.rand(1, device="cuda").item())
    assert a == b


def test_current_device_is_put_back() -> None:
    with simulate("cuda"):
        torch.cuda.set_device(1)
        with simulate("cuda"):
            assert torch.cuda.current_device() == 0
        assert torch.cuda.current_device() == 1


# ------------------------------------------------------------------ afterwards


def test_what_outlives_its_simulation_says_so() -> None:
    with simulate("cuda"):
        x = torch.ones(2, device="cuda")
    for use in (lambda: x + 1, lambda: x.cpu(), x.tolist):
        with pytest.raises(RuntimeError, match="not active"):
            use()
    with simulate():
        assert (x + 1).tolist() == [2, 2]


def test_name_imported_during_a_simulation_works_after_it() -> None:
    with simulate("cuda"):
        from torch import full, zeros
    assert full((2,), 1.0).tolist() == [1, 1]
    assert zeros(2, device="cpu").device.type == "cpu"
    with pytest.raises((AssertionError, RuntimeError), match=r"not compiled with CUDA|driver"):
        zeros(2, device="cuda")
    with simulate("cuda"):
        assert zeros(2, device="cuda").is_cuda


def test_early_names_are_torchs_own_again() -> None:
    with simulate("cuda"):
        assert early_names.tensor is torch.tensor
    assert early_names.tensor is torch.tensor
    assert not hasattr(early_names.tensor, "__wrapped__")


def test_threads_see_the_simulation() -> None:
    found: list[object] = []

    def work() -> None:
        x = torch.ones(2, device="cuda:1", requires_grad=True)
        (x * 2).sum().backward()
        found.append((x.grad.device, torch.cuda.current_device()))

    with simulate("cuda"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [(torch.device("cuda:1"), 0)]


# ------------------------------------------------------------------ a process of its own

REPO = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_cpu_behaves_as_without_a_simulation() -> None:
    script = str(Path(__file__).with_name("cpu_control.py"))
    alone, after = json.loads(run(script)), json.loads(run(script, "after"))
    # Torch then knows an accelerator, whose pinned memory it asks for in vain: another error.
    assert alone.pop("pin sparse").split(":")[0] == "RuntimeError"
    assert after.pop("pin sparse").split(":")[0] == "NotImplementedError"
    assert after == alone


FIRST_TIME = """
import sys
sys.path.insert(0, "tests/simulate")
import torch, torch._dynamo
import test_undone as t
before = t.attributes()
from devicekit.testing import simulate
with simulate("cuda"):
    pass
print(sorted(n for n in t.changed(before, t.attributes()) if not n.startswith("state.")))
"""


@pytest.mark.slow
def test_what_stays_after_the_first_simulation_of_a_process() -> None:
    kept = set(ast.literal_eval(run("-c", FIRST_TIME)))
    ours = {
        "torch.sim",
        "torch.accelerator.current_accelerator",
        "torch.accelerator.current_stream",
        "torch.storage.UntypedStorage.__new__",
        "torch.utils.backend_registration._privateuse1_backend_name",
    }
    assert ours <= kept
    # The rest is what torch makes for every backend: `Tensor.sim`, `DeviceType.SIM`, ...
    enums = ("torch._C._autograd.DeviceType.", "torch._C._profiler.ProfilerActivity.")
    assert {x for x in kept - ours if "sim" not in x and not x.startswith(enums)} == set()


COMPILED_AFTER = """
import sys, warnings
import torch
from devicekit.testing import simulate
name = sys.argv[1]
assert "torch._dynamo" not in sys.modules
with simulate(name):
    import torch._dynamo.trace_rules
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    import torch._dynamo.variables.tensor, torch._dynamo.variables.torch
warnings.simplefilter("error")
for function in (
    lambda x: torch.ones(2, device=x.device) + x,
    lambda x: x.new_zeros(2) + x.to(torch.float64),
    lambda x: torch.rand_like(x) + x.clone().uniform_(),
    lambda x: x if torch.is_autocast_enabled() else x + 1,
):
    torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2))
from devicekit.testing.simulation import private
for module, table in private.DYNAMO_TABLES:
    for item in vars(sys.modules[module])[table].items():
        for x in item:
            code = getattr(x, "__code__", None)
            if code is not None and "simulation" in code.co_filename:
                print(table, x.__qualname__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sim", "cuda"])
def test_dynamo_that_was_imported_in_a_simulation_knows_torch_after_it(name: str) -> None:
    left = run("-c", COMPILED_AFTER, name).splitlines()
    # These two are replaced for good, and silent.
    assert {x.rpartition(" ")[2].rpartition(".")[2] for x in left} <= {
        "current_accelerator",
        "current_device",
    }, left


@pytest.mark.parametrize(("module", "table"), private.DYNAMO_TABLES)
def test_tables_of_dynamo_are_where_they_are_put_back(module: str, table: str) -> None:
    assert isinstance(getattr(importlib.import_module(module), table), dict)
