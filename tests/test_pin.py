"""pin_memory: what is pinned, what is left with a warning, what the system's refusal says."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
import warnings
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from devicekit import DataLoader, PinMemoryError, find_tensors, pin, pin_memory
from devicekit.errors import forget_warnings
from devicekit.pin import host_limits, pin_where_possible

Pair = namedtuple("Pair", "left right")


@dataclass
class Sample:
    image: Tensor
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Tensor


class Tagged(list):  # type: ignore[type-arg]
    def __init__(self, items: object, issue: str) -> None:
        super().__init__(items)
        self.issue = issue


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is the first to meet a refusal or an odd tensor."""
    forget_warnings()
    monkeypatch.setattr(pin, "_refused", [])


# No accelerator: nothing happens.


def test_without_accelerator_returns_the_object_itself_R036():
    batch = {"x": torch.ones(2), "y": [torch.ones(1)]}
    assert pin_memory(batch) is batch


def test_new_memory_without_an_accelerator_is_pageable_R037():
    buffer = pin_memory(torch.empty(3))
    assert buffer.shape == (3,)
    assert not buffer.is_pinned()


def test_on_mps_returns_the_object_itself_R038(monkeypatch):
    there = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: there)
    batch = [torch.ones(2)]
    for _ in range(2):
        assert pin_memory(batch) is batch


def test_where_torch_raises_for_no_accelerator(monkeypatch):
    """As torch 2.6 does."""

    def none() -> None:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", none)
    batch = [torch.ones(2)]
    assert pin_memory(batch) is batch


def test_an_accelerator_that_was_built_but_cannot_be_used(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    batch = [torch.ones(2)]
    assert pin_memory(batch) is batch


def test_cuda_stays_untouched_R042():
    code = (
        "import torch, devicekit\n"
        "devicekit.pin_memory({'x': torch.ones(2)})\n"
        "devicekit.unpack(devicekit.pack([torch.ones(1)]))\n"
        "list(devicekit.prefetch_to_device([torch.ones(1)], 'cpu'))\n"
        "assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# With one: every container of the walker.


STRUCTURES = {
    "tensor": lambda: torch.ones(2),
    "list": lambda: [torch.ones(2), "a"],
    "namedtuple": lambda: Pair(torch.ones(2), 1),
    "dataclass R034": lambda: Sample(torch.ones(2)),
    "frozen slots R034": lambda: Frozen(torch.ones(2)),
    "list subclass R032": lambda: Tagged([torch.ones(2)], issue="x"),
    "namespace": lambda: SimpleNamespace(x=torch.ones(2)),
    "set": lambda: {torch.ones(2)},
    "packed sequence": lambda: pack_sequence([torch.ones(2), torch.ones(1)]),
    "empty tensor": lambda: [torch.ones(0)],
    "scalar": lambda: torch.tensor(1),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_container_is_pinned(name, simulated_accelerator):
    data = STRUCTURES[name]()
    result = pin_memory(data)
    assert type(result) is type(data)
    found = list(find_tensors(result))
    assert found
    for (path, tensor), (_, before) in zip(found, find_tensors(data), strict=True):
        assert tensor.is_pinned(), path
        assert torch.equal(tensor, before), path
        assert not before.is_pinned(), path
    if name == "list subclass R032":
        assert result.issue == "x"


def test_pinned_is_returned_itself(simulated_accelerator):
    batch = pin_memory({"x": torch.ones(4)})
    assert pin_memory(batch) is batch


def test_view_of_pinned_memory_is_pinned(simulated_accelerator):
    pinned = torch.ones(4).pin_memory()
    batch = [pinned[1:3], pinned.view(2, 2).t()]
    assert pin_memory(batch) is batch


def test_aliases_stay_one(simulated_accelerator):
    x = torch.ones(2)
    result = pin_memory({"a": x, "b": [x]})
    assert result["a"] is result["b"][0]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(6.0).view(2, 3)[:, ::2],
        torch.arange(3.0).expand(4, 3),
        torch.arange(4.0).unfold(0, 2, 1),
    ],
    ids=["transposed", "step", "expanded", "overlapping"],
)
def test_any_layout(tensor, simulated_accelerator):
    result = pin_memory(tensor)
    assert result.is_pinned()
    assert torch.equal(result, tensor)
    assert result.stride() == tensor.clone().stride()


def test_parameters_and_subclasses_keep_their_type(simulated_accelerator):
    class Labelled(Tensor):
        pass

    class Weight(torch.nn.Parameter):
        pass

    labelled = torch.ones(2).as_subclass(Labelled)
    labelled.label = "cat"
    weight = Weight(torch.ones(2))
    weight.label = "dog"
    batch = {
        "p": torch.nn.Parameter(torch.ones(2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "w": torch.ones(2, requires_grad=True),
        "s": labelled,
        "own": weight,
    }
    batch["p"].grad = torch.zeros(2)
    result = pin_memory(batch)
    assert all(tensor.is_pinned() for tensor in (*result.values(), result["p"].grad))
    assert type(result["p"]) is torch.nn.Parameter
    assert [result[name].requires_grad for name in batch] == [True, False, True, False, True]
    assert [result[name].is_leaf for name in batch] == [True, True, False, True, True]
    assert type(result["s"]) is Labelled
    assert result["s"].label == "cat"
    assert type(result["own"]) is Weight
    assert result["own"].label == "dog"


def test_gradients_flow_through_a_pinned_copy(simulated_accelerator):
    w = torch.ones(2, requires_grad=True)
    (pinned,) = pin_memory([w * 2])
    assert pinned.is_pinned()
    pinned.sum().backward()
    assert w.grad.tolist() == [2, 2]


# What cannot be pinned.


@contextmanager
def one_warning(text: str) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [text in str(each.message) for each in caught] == [True], [
        str(c.message) for c in caught
    ]
    assert caught[0].filename == __file__


def test_tensor_on_the_accelerator_is_left_R028(simulated_accelerator):
    device = simulated_accelerator.devices[0]
    batch = {"x": torch.ones(2), "mask": torch.ones(2, device=device)}
    with one_warning(f"`data['mask']` is left as it is: it is on {device}, and only dense CPU"):
        result = pin_memory(batch)
    assert result["mask"] is batch["mask"]
    assert result["x"].is_pinned()


def test_what_is_left_is_looked_for_once(simulated_accelerator, monkeypatch):
    walks = []

    def find(data):
        walks.append(data)
        return find_tensors(data)

    monkeypatch.setattr(pin, "find_tensors", find)
    device = simulated_accelerator.devices[0]
    with one_warning("`data['mask']` is left as it is"):
        for _ in range(3):
            pin_memory({"x": torch.ones(2), "mask": torch.ones(2, device=device)})
    assert len(walks) == 1


def test_what_torch_cannot_pin_in_its_own_words_R028(simulated_cuda):
    batch = {"x": torch.ones(2), "mask": torch.ones(2, device="cuda")}
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        batch["mask"].pin_memory()
    with one_warning("`data['mask']` is left as it is: it is on cuda:0"):
        result = pin_memory(batch)
    assert result["x"].is_pinned()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: torch.eye(2).to_sparse(), "a sparse tensor (sparse_coo)"),
        (lambda: torch.eye(2).to_sparse_csr(), "a sparse tensor (sparse_csr)"),
        (lambda: torch.ones(2, device="meta"), "on meta"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
            "a nested tensor",
        ),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "a nested tensor"),
    ],
    ids=["coo", "csr R030", "meta", "jagged", "nested"],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype:UserWarning")
def test_other_kinds_are_left(make, kind, simulated_accelerator):
    odd = make()
    batch = [torch.ones(2), odd]
    with one_warning(f"`data[1]` is left as it is: it is {kind}"):
        result = pin_memory(batch)
    assert result[1] is odd
    assert result[0].is_pinned()


@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
def test_quantized_is_left(simulated_accelerator):
    odd = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    with one_warning("a quantized tensor"):
        assert pin_memory([odd])[0] is odd


def test_one_warning_however_many_batches(simulated_accelerator):
    device = simulated_accelerator.devices[0]
    with one_warning("`data[0]`"):
        for _ in range(3):
            pin_memory([torch.ones(2, device=device), torch.ones(1, device=device)])


# Objects with their own method.


def test_own_pin_memory_is_honoured(simulated_accelerator):
    class Points:
        def __init__(self) -> None:
            self.x = torch.ones(2)

        def pin_memory(self) -> Points:
            self.x = self.x.pin_memory()
            return self

    batch = [Points()]
    result = pin_memory(batch)
    assert result[0].x.is_pinned()


def test_result_is_never_none_R034(simulated_accelerator):
    class Points:
        def pin_memory(self) -> None:
            pass

    points = Points()
    assert pin_memory({"p": points})["p"] is points


def test_own_errors_pass_with_the_path(simulated_accelerator):
    class Points:
        def pin_memory(self) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        pin_memory({"p": Points()})
    assert "data['p']" in caught.value.__notes__[0]


def test_modules_are_left(simulated_accelerator):
    module = torch.nn.Linear(1, 1)
    assert pin_memory([module])[0] is module


# torch's interfaces.


def test_no_deprecated_argument_is_passed(simulated_accelerator, monkeypatch):
    """torch warns "The argument 'device' of Tensor.pin_memory() is deprecated"."""
    calls = []
    real = Tensor.pin_memory
    monkeypatch.setattr(Tensor, "pin_memory", lambda *a, **k: calls.append((a, k)) or real(*a, **k))
    pin_memory([torch.ones(2)])
    assert [(len(args), kwargs) for args, kwargs in calls] == [(1, {})]


def test_default_device_does_not_matter_R043(simulated_accelerator):
    x = torch.ones(2)
    with torch.device("meta"):
        (result,) = pin_memory([x])
    assert result.is_pinned()
    assert result.tolist() == [1, 1]


def test_works_in_any_thread_R041(simulated_accelerator):
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(pin_memory(torch.ones(1)).is_pinned()))
    thread.start()
    thread.join()
    assert found == [True]


def test_no_context_on_another_card_R041(simulated_accelerator, monkeypatch):
    """Before this process has used a card, pinning is done on the card of its LOCAL_RANK."""
    name = simulated_accelerator.name
    module = torch.get_device_module(name)
    monkeypatch.setattr(module, "is_initialized", lambda: False, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    cards = []
    real = Tensor.pin_memory

    def recording(tensor: Tensor) -> Tensor:
        cards.append(module.current_device())
        return real(tensor)

    monkeypatch.setattr(Tensor, "pin_memory", recording)
    pin_memory([torch.ones(2)])
    assert cards == [1]
    assert module.current_device() == 0
    monkeypatch.setenv("LOCAL_RANK", "5")  # as where each process is shown one card
    pin_memory([torch.ones(2)])
    assert cards == [1, 0]


# Refusals.


@pytest.fixture
def refusing(simulated_accelerator, monkeypatch):
    def refuse(text: str) -> None:
        def fail(self: Tensor) -> Tensor:
            raise RuntimeError(text)

        monkeypatch.setattr(Tensor, "pin_memory", fail)

    return refuse


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` ...",
        "CUDA error: operation not supported",
        "CUDA error: OS call failed or operation not supported on this OS",
    ],
)
def test_refusal_has_measured_values_R035_R040(refusing, text):
    refusing(text)
    with pytest.raises(PinMemoryError) as caught:
        pin_memory({"x": torch.ones(256)})
    message = str(caught.value)
    assert "refused to pin 1.0 KB of host memory: CUDA error: o" in message.replace("OS", "o")
    for name, value in host_limits().items():
        if "free" not in name:  # these change from one moment to the next
            assert f"{name}: {value}" in message
        assert name in message
    assert "ulimit -l unlimited" in message
    assert "pin_memory=False" in message
    assert str(caught.value.__cause__) == text
    assert "data['x']" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "text", ["CUDA error: device-side assert triggered", "CUDA error: an illegal memory access"]
)
def test_other_errors_are_not_relabelled(refusing, text):
    refusing(text)
    with pytest.raises(RuntimeError, match=text) as caught:
        pin_memory([torch.ones(2)])
    assert not isinstance(caught.value, PinMemoryError)


def test_wsl_is_recognised(monkeypatch):
    release = "5.15.90.1-microsoft-standard-WSL2"
    monkeypatch.setattr(platform, "uname", lambda: SimpleNamespace(release=release))
    assert host_limits()["WSL"] == "yes"


def test_unasked_pinning_goes_on_without_R040(refusing):
    refusing("CUDA error: out of memory")
    batch = [torch.ones(2)]
    with one_warning("continuing without pinned memory: the system refused"):
        for _ in range(3):
            assert pin_where_possible(batch) is batch


def test_unasked_pinning_stops_trying_after_a_refusal(refusing, monkeypatch):
    refusing("CUDA error: out of memory")
    with one_warning("continuing without"):
        pin_where_possible([torch.ones(2)])
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: pytest.fail("tried again"))
    pin_where_possible([torch.ones(2)])


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_loader_whose_pinning_is_refused_says_so_once_for_all_epochs_R040(prefetch, refusing):
    refusing("CUDA error: out of memory")
    loader = DataLoader([torch.ones(2)] * 4, 2, device="sim", prefetch=prefetch)
    with one_warning("continuing without pinned memory: the system refused"):
        for _ in range(3):
            assert [batch.tolist() for batch in loader] == [[[1, 1], [1, 1]]] * 2


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a real accelerator")
def test_pins_on_a_real_accelerator():
    batch = {
        "x": torch.ones(4),
        "t": torch.arange(6.0).view(2, 3).t(),
        "e": torch.arange(3.0).expand(4, 3),
        "p": torch.nn.Parameter(torch.ones(2)),
    }
    result = pin_memory(batch)
    for name, tensor in result.items():
        assert tensor.is_pinned(), name
        assert torch.equal(tensor, batch[name]), name
    assert pin_memory(result) is result
    assert result["x"][1:].is_pinned()


def test_an_object_that_raises_for_every_attribute_is_passed_over(simulated_accelerator):
    class Unbound:
        def __getattribute__(self, name):
            raise RuntimeError(f"nothing bound, asked for {name}")

    unbound = Unbound()
    pinned = pin_memory([unbound, torch.ones(2)])
    assert pinned[0] is unbound
    assert pinned[1].is_pinned()
