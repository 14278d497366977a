"""guard and same_device: what is checked, what is kept, what passes."""

import asyncio
import copy
import gc
import inspect
import io
import pickle
import re
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import devicekit
from devicekit import DeviceMismatchError, guard, same_device
from devicekit.testing import Simulation


class Net(nn.Module):
    """Ten numbers in, one out."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    @guard
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Answer."""
        return self.fc(x) if mask is None else self.fc(x * mask)


@guard
def add(a: Tensor, b: Tensor, *, scale: float = 1.0) -> Tensor:
    """Add."""
    return (a + b) * scale


# What is kept


def test_signature_name_and_docstring_are_kept() -> None:
    assert str(inspect.signature(Net.forward)).startswith("(self, x:")
    assert list(inspect.signature(add).parameters) == ["a", "b", "scale"]
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add.", __name__)
    assert Net.forward.__qualname__ == "Net.forward"
    assert Net.forward.__doc__ == "Answer."


def test_kinds_of_functions_are_kept() -> None:
    @guard
    async def coroutine() -> None: ...

    @guard
    def generator() -> Iterator[int]:
        yield 1

    @guard
    async def stream():  # type: ignore[no-untyped-def]
        yield 1

    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(stream)


def test_defaults_and_keywords_work_in_every_order() -> None:
    net = Net()
    x = torch.ones(2, 3)
    for result in (net(x), net(x=x), net(x, None), net(mask=torch.ones(3), x=x)):
        torch.testing.assert_close(result, net.fc(x))


def test_a_wrong_call_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        add(torch.ones(1))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Net()(torch.ones(3), masks=None)


def test_decorating_twice_is_harmless() -> None:
    assert guard(add) is add
    assert guard(guard(add, allow="b"), allow="b") is not add


def test_pickling() -> None:
    assert pickle.loads(pickle.dumps(add)) is add
    net = Net()
    other = pickle.loads(pickle.dumps(net))
    torch.testing.assert_close(other(torch.ones(3)), net(torch.ones(3)))


def test_guard_on_a_module_is_kept_by_copies_and_pickles() -> None:
    net = guard(nn.Linear(3, 1), allow=("input",))
    assert type(net).__name__ == "Linear"
    assert isinstance(net, nn.Linear)
    for other in (copy.deepcopy(net), copy.copy(net), pickle.loads(pickle.dumps(net))):
        assert type(other) is type(net)
        torch.testing.assert_close(other(torch.ones(3)), net(torch.ones(3)))
    file = io.BytesIO()
    torch.save(net.state_dict(), file)


def test_remove_undoes_the_guard() -> None:
    net = nn.Linear(3, 1)
    assert guard.remove(guard(net)) is net
    assert type(net) is nn.Linear
    assert guard.remove(net) is net
    assert "forward" not in vars(net)


def test_guard_reaches_past_a_forward_of_the_instance(simulated_accelerator: Simulation) -> None:
    net = nn.Linear(3, 1).to("sim")
    plain = net.forward
    net.forward = lambda x: plain(x)  # type: ignore[method-assign]
    guard(net)
    with pytest.raises(DeviceMismatchError):
        net(torch.ones(3))
    guard.remove(net)
    assert not hasattr(net.forward, "__devicekit_guard__")


@pytest.mark.parametrize("target", [3, nn.Linear, property(lambda self: 1)])
def test_what_cannot_be_guarded(target: object) -> None:
    with pytest.raises(TypeError, match="`target` must be a function, a method or a module"):
        guard(target)  # type: ignore[type-var]


def test_a_misspelt_name_in_allow_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`allow` names 'maks', but Net\.forward has"):
        guard(Net.forward, allow="maks")


# What is checked


def test_cached_device_follows_the_module(simulated_accelerator: Simulation) -> None:
    net = Net()
    cpu, sim = torch.ones(2, 3), torch.ones(2, 3, device="sim")

    def is_on(device: str) -> None:
        right, wrong = (sim, cpu) if device == "sim" else (cpu, sim)
        net(right)
        with pytest.raises(DeviceMismatchError):
            net(wrong)

    is_on("cpu")
    net.to("sim")
    is_on("sim")
    net.load_state_dict({k: v.cpu() for k, v in net.state_dict().items()}, assign=True)
    is_on("cpu")
    for parameter in net.parameters():
        parameter.data = parameter.data.to("sim")
    is_on("sim")
    net.fc.weight = nn.Parameter(net.fc.weight.detach().cpu())
    net.fc.bias = nn.Parameter(net.fc.bias.detach().cpu())
    is_on("cpu")
    net.fc = nn.Linear(3, 1).to("sim")
    is_on("sim")
    net.fc = nn.Sequential(nn.Linear(3, 1))
    is_on("cpu")


def test_instances_of_one_class_do_not_mix(simulated_accelerator: Simulation) -> None:
    here, there = Net(), Net().to("sim")
    for _ in range(2):
        here(torch.ones(3))
        there(torch.ones(3, device="sim"))
        with pytest.raises(DeviceMismatchError):
            here(torch.ones(3, device="sim"))


def test_R072_mixes_that_torch_accepts_in_silence_are_caught() -> None:
    @guard
    def product(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    with pytest.raises(DeviceMismatchError, match="meta"):
        product(torch.ones(2, 2), torch.ones(2, 2, device="meta"))


def test_R062_index_arguments_are_caught_unless_allowed(
    simulated_accelerator: Simulation,
) -> None:
    def rows(table: Tensor, idx: Tensor) -> Tensor:
        return table[idx]

    table, idx = torch.arange(4, device="sim"), torch.tensor([1])
    with pytest.raises(DeviceMismatchError):
        guard(rows)(table, idx)
    assert guard(rows, allow=("idx",))(table, idx).device.type == "sim"


def test_R070_modules_without_parameters_take_anything(simulated_accelerator: Simulation) -> None:
    relu = guard(nn.ReLU())
    assert relu(torch.ones(2)).device.type == "cpu"
    assert relu(torch.ones(2, device="sim")).device.type == "sim"


def test_R066_R067_models_that_are_spread_are_not_compared(
    simulated_accelerator: Simulation,
) -> None:
    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3).to("sim:0")
            self.two = nn.Linear(3, 3).to("sim:1")

        @guard
        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x.to("sim:0")).to("sim:1"))

    net = Pipeline()
    for _ in range(2):
        assert net(torch.ones(3)).device == torch.device("sim:1")
    net.to("sim:0")
    with pytest.raises(DeviceMismatchError, match=r"Pipeline\.forward"):
        net(torch.ones(3))


def test_a_spread_model_still_has_its_failures_explained(
    simulated_accelerator: Simulation,
) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3).to("sim:0")
            self.two = nn.Linear(3, 3)

        @guard
        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x))

    with pytest.raises(DeviceMismatchError, match=r"self\.two"):
        Broken()(torch.ones(3, device="sim:0"))


def test_R057_the_weights_of_a_loss(simulated_accelerator: Simulation) -> None:
    loss = guard(nn.CrossEntropyLoss(weight=torch.ones(3)))
    scores = torch.ones(2, 3, device="sim")
    with pytest.raises(DeviceMismatchError, match=r"cpu +self +CrossEntropyLoss: 1 buffer"):
        loss(scores, torch.zeros(2, dtype=torch.long, device="sim"))


def test_move(simulated_accelerator: Simulation) -> None:
    @guard(move=True)
    def total(model: nn.Module, batch: dict[str, Tensor], *rest: Tensor) -> Tensor:
        return model(batch["x"]) + rest[0]

    net = nn.Linear(3, 1).to("sim:1")
    batch = {"x": torch.ones(3)}
    assert total(net, batch, torch.ones(1)).device == torch.device("sim:1")
    assert batch["x"].device.type == "cpu"


def test_move_without_a_module_goes_to_the_accelerator(simulated_accelerator: Simulation) -> None:
    moving = guard(lambda a, b: a + b, move=True)
    assert moving(torch.ones(1), torch.ones(1, device="sim:1")).device == torch.device("sim:1")
    assert moving(torch.ones(1), torch.ones(1)).device.type == "cpu"


def test_move_leaves_what_is_allowed(simulated_accelerator: Simulation) -> None:
    where = guard(lambda x, keep: (x.device.type, keep.device.type), move=True, allow="keep")
    assert where(torch.ones(1, device="sim"), torch.ones(1)) == ("sim", "cpu")


def test_demanded_device(simulated_accelerator: Simulation) -> None:
    @guard(device="sim:1")
    def identity(x: Tensor) -> Tensor:
        return x

    assert identity(torch.ones(1, device="sim:1")).device.index == 1
    with pytest.raises(
        DeviceMismatchError,
        match="identity: expected all tensors to be on sim:1, but found cpu\n",
    ):
        identity(torch.ones(1))


def test_demanded_device_is_resolved_at_the_first_call() -> None:
    guard(lambda x: x, device="cuda:7")  # at import time nobody may ask for CUDA


# What passes


def test_errors_pass_untouched() -> None:
    error = KeyError("x")

    @guard
    def fail() -> None:
        try:
            raise OSError("first")
        except OSError as first:
            raise error from first

    with pytest.raises(KeyError) as caught:
        fail()
    assert caught.value is error
    assert isinstance(caught.value.__cause__, OSError)
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "fail"


@pytest.mark.parametrize(
    "kind", [RuntimeError, torch.OutOfMemoryError, AssertionError, ValueError, TypeError]
)
def test_errors_of_the_user_are_never_relabelled(
    kind: type[Exception], simulated_accelerator: Simulation
) -> None:
    def complaint(x: Tensor, y: Tensor) -> Exception:
        return kind("Expected all tensors to be on the same device, but found sim:0 and cpu!")

    @guard(allow="y")
    def fail(x: Tensor, y: Tensor) -> None:
        raise complaint(x, y)

    with pytest.raises(kind) as caught:
        fail(torch.ones(1, device="sim"), torch.ones(1))
    assert type(caught.value) is kind


def test_a_suspect_text_without_a_mismatch_passes(simulated_accelerator: Simulation) -> None:
    @guard
    def fail(x: Tensor) -> Tensor:
        return torch.ops.aten.add.Tensor(x, torch.ones(2, 2, device="sim")[0, :1].expand(3))

    with pytest.raises(RuntimeError) as caught:
        fail(torch.ones(2, device="sim"))
    assert not isinstance(caught.value, DeviceMismatchError)


def test_the_original_error_is_the_cause(simulated_accelerator: Simulation) -> None:
    @guard(allow="b")
    def plus(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    with pytest.raises(DeviceMismatchError) as caught:
        plus(torch.ones(1, device="sim"), torch.ones(1))
    assert "same device" in str(caught.value.__cause__)


def test_nothing_is_kept_after_the_handler(simulated_accelerator: Simulation) -> None:
    class Thing(Tensor):
        pass

    net = Net().to("sim")
    references = []

    def fail() -> None:
        x = torch.ones(3).as_subclass(Thing)
        references.append(weakref.ref(x))
        net(x)

    def handle() -> None:
        kept = torch.ones(2).as_subclass(Thing)
        references.append(weakref.ref(kept))
        try:
            fail()
        except DeviceMismatchError:
            pass
        del kept
        assert references[0]() is None, "the frame of the caller keeps what it has deleted"

    gc.collect()
    gc.disable()  # by counting alone: no cycle may be left behind
    try:
        handle()
        assert all(reference() is None for reference in references)
    finally:
        gc.enable()


def test_nothing_is_kept_after_a_failure_inside(simulated_accelerator: Simulation) -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.shift = torch.ones(3)

        @guard
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) + self.shift

    net = Bad().to("sim")
    reference = weakref.ref(net)
    gc.collect()
    gc.disable()
    try:
        try:
            net(torch.ones(3, device="sim"))
        except DeviceMismatchError as error:
            text = str(error)
        del net
        assert "self.shift" in text
        assert reference() is None
    finally:
        gc.enable()


# Where it is used


def test_asynchronous_generator_delegates() -> None:
    log = []

    @guard
    async def stream(x: Tensor):  # type: ignore[no-untyped-def]
        try:
            while True:
                try:
                    log.append((yield x))
                except ValueError:
                    log.append("thrown")
        finally:
            log.append("closed")

    async def main() -> None:
        values = stream(torch.ones(1))
        await anext(values)
        await values.asend("sent")
        await values.athrow(ValueError())
        await values.aclose()

    asyncio.run(main())
    assert log == ["sent", "thrown", "closed"]


def test_generator_delegates() -> None:
    log = []

    @guard
    def stream(x: Tensor) -> Iterator[Tensor]:
        try:
            log.append((yield x))
            yield x
        finally:
            log.append("closed")

    values = stream(torch.ones(1))
    next(values)
    values.send("sent")  # type: ignore[attr-defined]
    values.close()  # type: ignore[attr-defined]
    assert log == ["sent", "closed"]


@pytest.fixture
def one_process(tmp_path) -> Iterator[None]:  # type: ignore[no-untyped-def]
    if not torch.distributed.is_available():
        pytest.skip("this build of torch has no torch.distributed")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_under_distributed_data_parallel(one_process: None) -> None:
    net = DistributedDataParallel(Net())
    net(torch.ones(2, 3)).sum().backward()
    assert net.module.fc.weight.grad is not None
    outer = guard(DistributedDataParallel(nn.Linear(3, 1)))
    assert outer(torch.ones(2, 3)).shape == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["class", "instance", "function"])
def test_compiles_without_a_graph_break(kind: str) -> None:
    torch._dynamo.reset()
    net: object = {
        "class": Net(),
        "instance": guard(nn.Linear(3, 1)),
        "function": guard(lambda x: x * 2),
    }[kind]
    compiled = torch.compile(net, fullgraph=True, backend="eager")  # type: ignore[call-overload]
    x = torch.ones(2, 3)
    torch.testing.assert_close(compiled(x), net(x))  # type: ignore[operator]
    explained = torch._dynamo.explain(net)(x)
    assert explained.graph_break_count == 0


@pytest.mark.slow
def test_a_mismatch_inside_compiled_code_is_explained(simulated_accelerator: Simulation) -> None:
    torch._dynamo.reset()

    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.shift = torch.ones(3)

        @guard
        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            return h + self.shift

    net = Bad().to("sim")
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    x = torch.ones(3, device="sim")
    with pytest.raises(RuntimeError) as caught:
        compiled(x)
    text = devicekit.explain(caught.value)
    assert text is not None
    assert re.search(r"cpu  self.shift +float32\[3\], plain attribute of Bad", text)
    assert "return h + self.shift" in text
    with pytest.raises(DeviceMismatchError, match=r"Bad\.forward.*[\s\S]*self\.shift"):
        guard(compiled)(x)


@pytest.mark.slow
def test_a_tensor_made_inside_compiled_code_is_named(simulated_accelerator: Simulation) -> None:
    torch._dynamo.reset()

    @guard
    @torch.compile(backend="eager", fullgraph=True)
    def scaled(a: Tensor) -> Tensor:
        weights = torch.ones(3)
        return a * weights

    with pytest.raises(
        DeviceMismatchError, match=r"weights +tensor, made by torch.ones\(3\) without device="
    ):
        scaled(torch.ones(3, device="sim"))


@pytest.mark.slow
def test_moving_compiles_without_a_graph_break(simulated_accelerator: Simulation) -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 1)

        @guard(move=True, allow="keep")
        def forward(self, x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
            return self.fc(x), keep

    demanding = guard(lambda x: x * 2, device="sim:1", move=True)
    for target, args, devices in (
        (Moving().to("sim"), (torch.ones(3), torch.ones(1)), ["sim", "cpu"]),
        (demanding, (torch.ones(3),), ["sim"]),
    ):
        torch._dynamo.reset()
        found = torch.compile(target, backend="eager", fullgraph=True)(*args)  # type: ignore[call-overload]
        found = found if isinstance(found, tuple) else (found,)
        assert [one.device.type for one in found] == devices


# same_device


def test_of_two_accelerators_the_parameters_is_right(simulated_accelerator: Simulation) -> None:
    x, weight = torch.ones(3, device="sim:0"), nn.Parameter(torch.ones(3, device="sim:1"))
    with pytest.raises(DeviceMismatchError) as caught:
        same_device(x, weight)
    assert str(caught.value).endswith('fix: x = x.to("sim:1")')


def test_same_device(simulated_accelerator: Simulation) -> None:
    x = torch.ones(2, device="sim:1")
    assert same_device(x, [x], torch.tensor(1.0), nn.Linear(1, 1).to("sim:1")) == "sim:1"
    assert same_device(torch.tensor(1.0)) == "cpu"
    with pytest.raises(devicekit.DeviceError, match="found no tensor"):
        same_device({"a": 1})


def test_same_device_names_its_arguments(simulated_accelerator: Simulation) -> None:
    base, offsets = torch.ones(2, device="sim"), [torch.ones(2)]
    with pytest.raises(DeviceMismatchError) as caught:
        same_device(base, offsets)
    assert str(caught.value).splitlines() == [
        "same_device: expected all tensors to be on the same device, but found sim:0 and cpu",
        "",
        "  sim:0  base               float32[2]",
        "  cpu    offsets[0]         float32[2]",
        "",
        '  fix: offsets = devicekit.to_device(offsets, "sim:0")',
    ]


# What has no name in the caller, and what cannot be guarded


def test_same_device_uses_the_text_of_the_call(simulated_accelerator: Simulation) -> None:
    with pytest.raises(DeviceMismatchError) as caught:
        same_device(torch.ones(2, device="sim"), nn.Linear(2, 2))
    text = str(caught.value)
    assert "objects[" not in text
    assert text.endswith('fix: nn.Linear(2, 2).to("sim:0")')


def test_same_device_without_source_advises_no_name(simulated_accelerator: Simulation) -> None:
    space = {"same_device": same_device, "x": torch.ones(2), "y": torch.ones(2, device="sim")}
    with pytest.raises(DeviceMismatchError) as caught:
        exec("same_device(x, y)", space)
    assert "  cpu    objects[0]         float32[2]" in str(caught.value).splitlines()
    assert "fix:" not in str(caught.value)


def test_a_model_on_two_devices_is_explained_only(simulated_accelerator: Simulation) -> None:
    cpu_layer, sim_layer, x = nn.Linear(2, 2), nn.Linear(2, 2).to("sim"), torch.ones(1, 2)
    with pytest.raises(DeviceMismatchError) as caught:
        guard(nn.Sequential(cpu_layer, sim_layer))(x)
    assert re.search(r"^  cpu    cpu_layer  .*Linear: 2 parameters", str(caught.value), re.M)
    with pytest.raises(DeviceMismatchError) as caught:
        guard(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("sim")))(torch.ones(1, 2))
    lines = str(caught.value).splitlines()
    assert "  cpu    nn.Linear(2, 2)            made here without device=" in lines
    assert (
        'guard(nn.Sequential(nn.Linear(2, 2, device="sim:0"), nn.Linear(2, 2).to("sim")))'
        '(torch.ones(1, 2, device="sim:0"))' in lines[-1]
    )


def test_no_error_of_the_explanation_replaces_the_error(
    simulated_accelerator: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Python 3.11 `ast.parse` raises SystemError when several threads parse at once."""

    def broken(*_: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch")

    a, b = torch.ones(2), torch.ones(2, device="sim")
    monkeypatch.setattr("devicekit.diagnosis.frames.ast.parse", broken)
    with pytest.raises(DeviceMismatchError, match="expected all tensors to be on the same"):
        add(a, b)
    monkeypatch.undo()
    monkeypatch.setattr("devicekit.diagnosis.frames._read", broken)
    with pytest.raises(DeviceMismatchError, match="expected all tensors to be on the same"):
        add(a, b)
    with pytest.raises(RuntimeError, match="same device"):
        guard(lambda: a + b)()
    with pytest.raises(DeviceMismatchError, match="same_device"):
        same_device(a, b)


def test_threads_that_fail_at_once(simulated_accelerator: Simulation) -> None:
    found: list[str] = []

    def fail() -> None:
        try:
            add(torch.ones(2), torch.ones(2, device="sim"))
        except BaseException as error:
            found.append(type(error).__name__)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["DeviceMismatchError"] * 4


@pytest.mark.parametrize("options", [{}, {"device": "sim"}])
def test_move_moves_defaults(simulated_accelerator: Simulation, options: dict[str, object]) -> None:
    default = torch.ones(2)

    def scale(x: Tensor, mask: Tensor = default, *, bias: Tensor = default) -> Tensor:
        return x * mask + bias

    moving = guard(move=True, **options)(scale)  # type: ignore[call-overload]
    assert moving(torch.ones(2, device="sim")).device.type == "sim"
    assert moving(torch.ones(2, device="sim"), bias=torch.ones(2)).tolist() == [2, 2]
    assert default.device.type == "cpu"


def test_move_moves_defaults_of_a_call_without_arguments(
    simulated_accelerator: Simulation,
) -> None:
    @guard(move=True, device="sim")
    def double(x: Tensor = torch.ones(2)) -> Tensor:  # noqa: B008
        return x * 2

    assert double().device.type == "sim"


class Tagged(nn.Module):
    def __init_subclass__(cls, *, tag: str) -> None:
        """Demand a tag."""


def test_targets_that_cannot_be_guarded() -> None:
    with pytest.raises(TypeError, match=r"^`target` is a Tagged, .*missing 1 required .*'tag'"):
        guard(Tagged())
    with pytest.raises(TypeError, match=r"^`module` must be a module, but is 3"):
        guard.remove(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^guard\(\) got an unexpected keyword argument 'mvoe'"):
        guard(mvoe=True)  # type: ignore[call-overload]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_by_torch_jit_is_refused() -> None:
    traced = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(TypeError, match=r"^`target` is a \w+, compiled by torch.jit"):
        guard(traced)
