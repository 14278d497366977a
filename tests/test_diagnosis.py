"""explain: the frame of the error, the texts of torch, reading frames without running anything."""

import ast
import gc
import linecache
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import devicekit
from devicekit import DeviceMismatchError, explain, guard
from devicekit.diagnosis.frames import MISSING, Call, calls_of, lookup, member, parse
from devicekit.diagnosis.messages import devices_said, is_suspect, wants_host
from devicekit.diagnosis.source import add_keyword, binding_of, insert_all
from devicekit.testing import Simulation


class Net(nn.Module):
    """Twelve parameters and two buffers, as in the design."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1) for _ in range(6)])
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("std", torch.ones(3))

    @guard
    def forward(self, x: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return x


class Shifted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.shift = torch.ones(3)

    @guard
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + self.shift


def message_of(function: Callable[..., object], *args: object) -> str:
    with pytest.raises(DeviceMismatchError) as caught:
        function(*args)
    return str(caught.value)


# The frame, line by line


def test_frame_of_arguments(simulated_accelerator: Simulation) -> None:
    net = Net().to("sim")
    x = torch.empty(32, 3, 224, 224)
    batch = {"mask": torch.ones(32, 128, dtype=torch.bool)}
    assert message_of(lambda: call(net, x, batch)).splitlines() == [
        "Net.forward: expected all tensors to be on the same device, but found sim:0 and cpu",
        "",
        "  sim:0  self               Net: 12 parameters, 2 buffers",
        "  cpu    x                  float32[32, 3, 224, 224]",
        "  cpu    batch['mask']      bool[32, 128]",
        "",
        '  fix: x, batch = devicekit.to_device((x, batch), "sim:0")',
    ]


def call(net: nn.Module, x: Tensor, batch: dict[str, Tensor]) -> object:
    return net(x, batch)


def test_frame_of_a_failure_inside(simulated_accelerator: Simulation) -> None:
    net = Shifted().to("sim")
    text = message_of(net, torch.ones(2, 3, device="sim"))
    line = next(n for n, code in enumerate(source(), 1) if "return self.fc(x) + self.shift" in code)
    made = next(n for n, code in enumerate(source(), 1) if "self.shift = torch.ones(3)" in code)
    assert text.splitlines() == [
        "Shifted.forward: expected all tensors to be on the same device, but found sim:0 and cpu",
        "",
        f'  File "{__file__}", line {line}, in Shifted.forward',
        "    return self.fc(x) + self.shift",
        "",
        "  sim:0  self.fc            Linear: 2 parameters",
        "  sim:0  x                  float32[2, 3]",
        "  cpu    self.shift         float32[3], plain attribute of Shifted: "
        ".to() leaves it behind",
        "",
        '  fix: self.register_buffer("shift", torch.ones(3), persistent=False)'
        f"  # instead of line {made}",
    ]


def source() -> list[str]:
    return Path(__file__).read_text().splitlines()


def test_frame_in_a_traceback(simulated_accelerator: Simulation) -> None:
    import traceback

    try:
        Net().to("sim")(torch.ones(1), {})
    except DeviceMismatchError as error:
        text = traceback.format_exception_only(error)[0]
    assert text.startswith("devicekit.DeviceMismatchError: Net.forward: expected all tensors to be")


def test_frame_of_numpy(simulated_accelerator: Simulation) -> None:
    @guard
    def values(x: Tensor) -> object:
        return x.numpy()

    lines = message_of(values, torch.ones(2, device="sim")).splitlines()
    assert lines[0].startswith("values: can't convert sim:0 device type tensor to numpy.")
    assert lines[3:7] == ["    return x.numpy()", "", "  sim:0  x                  float32[2]", ""]
    assert lines[7].startswith("  fix: return x.cpu().numpy()  # instead of line ")


def test_many_rows_are_cut(simulated_accelerator: Simulation) -> None:
    @guard
    def total(x: Tensor, parts: list[Tensor]) -> Tensor:
        return x

    text = message_of(total, torch.ones(1, device="sim"), [torch.ones(1) for _ in range(40)])
    assert text.splitlines()[-3] == "  and 29 more"
    assert len(text.splitlines()) == 17


# explain


def test_explain_gives_the_same_report(simulated_accelerator: Simulation) -> None:
    net = Shifted().to("sim")
    x = torch.ones(2, 3, device="sim")
    guarded = message_of(net, x)
    with pytest.raises(RuntimeError) as caught:
        Shifted.forward.__wrapped__(net, x)  # type: ignore[attr-defined]
    assert explain(caught.value) == guarded


def test_explain_of_a_guards_error_is_its_text(simulated_accelerator: Simulation) -> None:
    with pytest.raises(DeviceMismatchError) as caught:
        Net().to("sim")(torch.ones(1), {})
    assert explain(caught.value) == str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes cannot be multiplied"),
        torch.OutOfMemoryError("CUDA out of memory on the same device"),
        KeyError("same device"),
        devicekit.MoveError("same device"),
    ],
    ids=repr,
)
def test_explain_of_something_else_is_none(error: Exception) -> None:
    assert explain(error) is None
    with pytest.raises(type(error)) as caught:
        raise error
    assert explain(caught.value) is None


def test_R064_the_state_of_an_optimizer(simulated_accelerator: Simulation) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.to("sim")
    for parameter in model.parameters():
        parameter.grad = None
    model(torch.ones(1, 2, device="sim")).sum().backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        text = explain(error)
    assert text is not None
    assert re.search(r"^  cpu    optimizer.state\[model.weight\]\['exp_avg'\] ", text, flags=re.M)
    assert 'fix: devicekit.to_device(optimizer, "sim:0")' in text


# The texts of torch


def test_spellings_are_suspects() -> None:
    for text in (
        "Tensor on device cpu is not on the expected device meta!",
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from "
        "other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        "and cpu!",
        "Input and parameter tensors are not at the same device, found input tensor at cpu and "
        "parameter tensor at cuda:0",
        "Expected query, key, and value to have the same device type, but got query.device: cpu "
        "key.device: cuda:0 and value.device: cuda:0 instead.",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the "
        "same",
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        "Expected a 'cuda' device type for generator but found 'cpu'",
        "module must have its parameters and buffers on device cuda:0 (device_ids[0]) but found "
        "one of them on device: cuda:1",
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
        "host memory first.",
        "'lengths' argument should be a 1D CPU int64 tensor, but got 1D cuda:0 Long tensor",
        "All input tensors must be on the same device. Received cpu and cuda:0",
    ):
        assert is_suspect(text), text


def test_texts_that_are_none_of_ours() -> None:
    for text in (
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)",
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "CUDA error: invalid device ordinal",
        "Cannot access accelerator device when none is available.",
        "expected scalar type Float but found Half",
        "Torch not compiled with CUDA enabled",
    ):
        assert not is_suspect(text), text


def test_texts_that_want_the_cpu() -> None:
    assert wants_host("can't convert cuda:0 device type tensor to numpy.")
    assert not wants_host("found at least two devices, cuda:0 and cpu!")


# Texts with "device" beside words of comparison that speak of something else.
_OTHER_TEXTS = re.compile(
    r"""
      deprecat | please\ report\ a\ bug | \n.*\n | collective | process\ ?group | NCCL | nccl
    | backend | rank | stream | event | storage | pointer | peer | fuser | kineto | profil
    | device\ string | device\ (?:index|id|count|mesh|name) | string\ literal | out\ of\ memory
    | attribute | allocat | lazy | rpc | pipe | not\ (?:implemented|supported) | shape | layout
    | expected\ device\ ?'?$ | invalid\ device,\ must\ be | dldevice | quantized\ dtype
    | lambda | schema | jit | arg\d | guard | graph | symbolic | window | without\ ATen
    | data\ ptrs | futures | autocast | type\ was\ provided | have\ indices | received\ on
    | scatter | same\ length | unique\ devices | tensor\ options | unexpected\ device\ type
    | exclusive-thread
    """,
    re.VERBOSE | re.IGNORECASE,
)
_COMPARES = re.compile(
    r"(?:same|different|mismatch|match|expected|should|must|both)[^.]*\bdevices?\b"
    r"|\bdevices?\b[^.]*(?:same|different|mismatch|match|expected|must be)",
    re.IGNORECASE,
)


@pytest.mark.slow
def test_every_spelling_in_the_installed_binary_is_known() -> None:
    """A new torch with a new spelling shows up here, to be added or to be set aside."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("*torch_*"))
    texts: set[str] = set()
    for library in libraries:
        if library.suffix not in (".so", ".dylib", ".dll"):
            continue
        for match in re.finditer(rb"[\x20-\x7e\n\t]{12,}", library.read_bytes()):
            text = match.group()
            if b"device" in text and b" " in text and len(text) < 600:
                texts.add(text.decode().strip())
    assert len(texts) > 500
    known = {text for text in texts if is_suspect(text)}
    compared = {t for t in texts - known if _COMPARES.search(t) and not _OTHER_TEXTS.search(t)}
    assert len(known) >= 55
    assert not compared, "\n".join(sorted(compared))


# Reading frames


def frame_with(**scope: object) -> Call:
    code = compile("pass", "<test>", "exec")
    return Call(code, 1, scope, {}, None, None, None)


def value_of(text: str, **scope: object) -> object:
    return lookup(ast.parse(text, mode="eval").body, frame_with(**scope))


class Hostile:
    """An object on which every question has a price."""

    def __init__(self) -> None:
        self.__dict__["x"] = torch.ones(1)

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"asked for {name}")

    def __repr__(self) -> str:
        raise AssertionError("asked for the repr")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]

    @property
    def costly(self) -> Tensor:
        raise AssertionError("computed")


def make_hostile() -> Hostile:
    hostile = object.__new__(Hostile)
    object.__getattribute__(hostile, "__dict__")["x"] = torch.ones(1)
    return hostile


def test_lookup_runs_no_code_of_the_user() -> None:
    hostile = make_hostile()
    assert isinstance(value_of("h.x", h=hostile), Tensor)
    assert value_of("h.costly", h=hostile) is MISSING
    assert value_of("h[0]", h=hostile) is MISSING
    assert value_of("d[h]", h=hostile, d={}) is MISSING
    assert member(hostile, "absent") is MISSING


def test_hostile_objects_in_a_failing_frame(simulated_accelerator: Simulation) -> None:
    class Huge(list):  # type: ignore[type-arg]
        def __repr__(self) -> str:
            return "x" * 10**7

    @guard
    def step(x: Tensor) -> Tensor:
        hostile, huge = make_hostile(), Huge(range(3))
        return consume(x, hostile, huge) + torch.ones(2)

    def consume(x: Tensor, *others: object) -> Tensor:
        return x

    text = message_of(step, torch.ones(2, device="sim"))
    assert "torch.ones(2)" in text
    assert len(text) < 2000


def test_a_failure_of_the_explanation_hides_nothing(
    simulated_accelerator: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise LookupError("a mistake in the search")

    monkeypatch.setattr("devicekit.diagnosis.things.mentioned", fail)
    monkeypatch.setattr("devicekit.diagnosis.arguments.trace", fail)
    inside = guard(lambda x: x + torch.ones(2))
    with pytest.raises(RuntimeError, match="found at least two devices") as caught:
        inside(torch.ones(2, device="sim"))
    assert not isinstance(caught.value, DeviceMismatchError)
    x = torch.ones(1)
    assert 'fix: x = x.to("sim:0")' in message_of(lambda: call(Net().to("sim"), x, {}))


def test_items_of_a_defaultdict_are_not_made() -> None:
    from collections import defaultdict

    data: defaultdict[str, list[int]] = defaultdict(list)
    assert value_of("d['new']", d=data) is MISSING
    assert not data


def test_lookup_of_nested_items() -> None:
    layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
    scope = {"net": layers, "i": 1, "d": {"a": [1, (2, 3)]}}
    assert value_of("net[i].weight", **scope) is layers[1].weight
    assert value_of("net[-1]", **scope) is layers[1]
    assert value_of("d['a'][1][0]", **scope) == 2
    assert value_of("d['a'][7]", **scope) is MISSING


@pytest.mark.parametrize(
    "words",
    [
        "input type  weight type ",
        "expects ",
        "expected ",
        "mismatch between ",
        "does not match ",
        "same device found ",
        "type of device ",
        "can't convert ",
    ],
)
def test_a_long_text_is_searched_in_little_time(words: str) -> None:
    text = words * 2000
    start = time.perf_counter()
    assert not is_suspect(text) or "same device" in text
    wants_host(text)
    devices_said(text)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("name", ["foo", "cuda:-1", "CPU", "cpu:"])
def test_other_sentences_with_the_words_of_torch_name_no_device(name: str) -> None:
    cpu = torch.device("cpu")
    assert devices_said(f"on the same device, but found {name} and cpu!") == [cpu]


@given(st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=10))
def test_lookup_agrees_with_python(data: object) -> None:
    def visit(value: object, path: str) -> None:
        assert value_of(path, data=data) is value
        if isinstance(value, list):
            for i, one in enumerate(value):
                visit(one, f"{path}[{i}]")

    visit(data, "data")


BINDINGS = """
def f(x, y=None):
    if x:
        y = 1
    else:
        y = 2
        use(y)  # line 7
    for i in range(3):
        use(i, z)  # line 9
        z = i
    if x:
        y = 3
        return y
    use(y)  # line 14
    with open(x) as w:
        use(w)  # line 16
"""


@pytest.mark.parametrize(
    ("name", "line", "bound_at"),
    [("y", 7, 6), ("i", 9, 8), ("z", 9, 10), ("y", 14, 6), ("w", 16, 15), ("x", 14, None)],
)
def test_what_bound_a_name(name: str, line: int, bound_at: int | None) -> None:
    function = ast.parse(BINDINGS).body[0]
    binding = binding_of(function, name, line)
    assert getattr(binding, "lineno", None) == bound_at


def test_without_source_the_locals_are_listed(simulated_accelerator: Simulation) -> None:
    space: dict[str, object] = {"torch": torch}
    exec("def f(a, b):\n    return a + b", space)
    text = message_of(guard(space["f"], allow="b"), torch.ones(1, device="sim"), torch.ones(1))
    assert re.search(r"^  cpu    b  ", text, flags=re.M)


def test_a_file_that_was_changed_does_no_harm(
    simulated_accelerator: Simulation, tmp_path: Path
) -> None:
    path = tmp_path / "changing.py"
    path.write_text("def f(a, b):\n    return a + b\n")
    space: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    path.write_text("this is no python (")
    linecache.checkcache()
    text = message_of(guard(space["f"], allow="b"), torch.ones(1, device="sim"), torch.ones(1))
    assert re.search(r"^  cpu    b  ", text, flags=re.M)


def test_the_frames_of_the_caller_keep_nothing(simulated_accelerator: Simulation) -> None:
    """Before Python 3.13 a look at `f_locals` leaves a dictionary behind in the frame."""
    big = torch.ones(5)
    users, _ = calls_of(None, sys._getframe())
    assert users[0].scope["big"] is big
    count = sys.getrefcount(big)
    del users
    assert sys.getrefcount(big) == count - 1


# Operands without a name


def test_both_operands_were_made_in_the_statement(simulated_accelerator: Simulation) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2, 2) @ torch.ones(2, 2, device="sim")
    text = explain(caught.value)
    assert text is not None
    lines = text.splitlines()
    assert "  sim:0  torch.ones(2, 2, device='sim')  made here" in lines
    assert "  cpu    torch.ones(2, 2)                made here without device=" in lines
    assert lines[-1].startswith(
        '  fix: torch.ones(2, 2, device="sim:0") @ torch.ones(2, 2, device="sim")  # instead of'
    )


def test_a_named_operand_meets_one_made_on_the_accelerator(
    simulated_accelerator: Simulation,
) -> None:
    def f() -> Tensor:
        x = torch.ones(2, 2)
        return x @ torch.zeros(2, 2, device="sim")

    text = message_of(guard(f))
    assert re.search(r"^  cpu    x  .*made by torch.ones", text, flags=re.M)
    assert re.search(r"^  sim:0  torch.zeros\(2, 2, device='sim'\)  made here$", text, flags=re.M)
    assert 'fix: x = torch.ones(2, 2, device="sim:0")  # instead of line' in text


def test_a_needless_move_is_dropped(simulated_accelerator: Simulation) -> None:
    class Child(nn.Linear):
        @guard
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.cpu())

    text = message_of(Child(3, 3).to("sim"), torch.ones(1, 3, device="sim"))
    assert "fix: return super().forward(x)  # instead of line" in text


@pytest.mark.parametrize("wrong", ["x", RuntimeError, None])
def test_explain_refuses_what_is_no_exception(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"^`exc` must be an exception that was caught, but is "):
        explain(wrong)  # type: ignore[arg-type]


def test_the_devices_in_the_words_of_the_kernels() -> None:
    text = (
        "Expected all tensors to be on the same device, but got mat2 is on cuda:0, different from "
        "other tensors on cpu (when checking argument in method wrapper_CUDA_mm)"
    )
    assert devices_said(text) == [torch.device("cuda:0"), torch.device("cpu")]


def test_threads_parse_one_after_the_other(tmp_path: Path) -> None:
    """Python 3.11 raises SystemError where a thread parses while another one does."""
    path = tmp_path / "long.py"
    path.write_text("def f(a, b):\n    return [a, (b, -a)]\n" * 300)
    found: list[ast.Module | None] = []

    def parse_often() -> None:
        found.extend(parse(str(path)) for _ in range(4))

    def switch(*_: object) -> None:
        """Give the other threads a chance in the midst of the parser, whose memory is collected."""
        for _ in range(20):
            pass

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(switch)
    try:
        gc.set_threshold(50)
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=parse_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(switch)
    assert [type(tree) for tree in found] == [ast.Module] * 16


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ("x = zeros(2) + ones(3)", "x = zeros(2, device=d) + ones(3, device=d)"),
        ("x = zeros(2,) + ones(3, )", "x = zeros(2, device=d) + ones(3, device=d)"),
        ("x = zeros()", "x = zeros(device=d)"),
    ],
)
def test_a_keyword_is_added_as_one_would_type_it(tmp_path: Path, written: str, typed: str) -> None:
    file = tmp_path / "module.py"
    file.write_text(written)
    statement = ast.parse(written).body[0]
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    assert insert_all(str(file), [(one, "device=d", True) for one in calls], statement) == typed
    if len(calls) == 1:
        assert add_keyword(str(file), calls[0], "device=d", statement) == typed
