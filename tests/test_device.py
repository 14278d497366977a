"""Device: what is asked for, what is used, and why."""

import argparse
import copy
import io
import itertools
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import timeit
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NoReturn
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from devicekit import compat, device, probe
from devicekit.device import Device, choice
from devicekit.device.spec import parse
from devicekit.errors import (
    DeviceError,
    DeviceFallbackWarning,
    DeviceMismatchError,
    DeviceSpecError,
    DeviceUnavailableError,
)
from devicekit.probe import Probe
from devicekit.testing import simulate
from devicekit.testing.simulation.private import MISSING

VARIABLES = choice.VARIABLES

needs_simulation = pytest.mark.skipif(bool(MISSING), reason="this torch is too old to simulate")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    device.forget()
    yield
    device.forget()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend a machine with these counts of devices; all other types are not built."""

    def pretend(current: int = 0, **counts: int) -> None:
        def answer(type: str) -> Probe:
            if type in ("cpu", "meta"):
                return Probe(type, 1)
            if counts.get(type):
                return Probe(type, counts[type])
            if type in counts:
                return Probe(type, 0, "no_device", f"no {type} here", "buy one")
            return Probe(type, 0, "not_built", f"no {type} in this torch", "install another")

        monkeypatch.setattr(choice, "probe", answer)
        monkeypatch.setattr(device, "probe", answer)
        monkeypatch.setattr(compat, "current_index", lambda type: current)
        device.forget()

    return pretend


@pytest.fixture
def cpu_only(machine) -> None:
    machine()


def fails(spec: object, **options: object) -> str:
    """The text of the error for a bad spec."""
    with pytest.raises(DeviceSpecError) as caught:
        Device(spec, **options)
    return str(caught.value)


# --- Specs.


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("auto", "cuda:0"),
        (None, "cuda:0"),
        ("gpu", "cuda:0"),
        ("gpu:1", "cuda:1"),
        (1, "cuda:1"),
        (np.int64(1), "cuda:1"),
        ("cuda", "cuda:0"),
        ("cuda:1", "cuda:1"),
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("mps", "mps:0"),
        ("mps:0", "mps:0"),
        ("meta", "meta"),
        ("meta:0", "meta"),
        (torch.device("cuda"), "cuda:0"),
        (torch.device("cuda:1"), "cuda:1"),
        (torch.device("cpu", 0), "cpu"),
        (Enum("Kind", {"GPU": "cuda"}, type=str).GPU, "cuda:0"),
    ],
    ids=repr,
)
def test_spec(machine, spec: object, text: str) -> None:
    machine(cuda=2, mps=1)
    resolved = Device(spec)
    assert str(resolved) == text
    assert type(str(resolved)) is str
    assert resolved.torch == torch.device(text)
    assert resolved.reason is None
    assert resolved.why == ""
    assert Device(resolved) == resolved


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cuda:256", "at most 127"),
        ("cuda:128", "at most 127"),
        ("cuda:" + "9" * 5000, "at most 127"),
        ("cuda:-1", "starts at 0"),
        (torch.device("cuda:200"), "starts at 0"),
        (-1, "starts at 0"),
        (200, "at most 127"),
        ("cuda:01", "did you mean 'cuda:1'?"),
        (" cuda", "did you mean 'cuda'?"),
        ("cuda\n", "did you mean 'cuda'?"),
        ("CUDA", "did you mean 'cuda'?"),
        ("CUDA:3", "did you mean 'cuda:3'?"),
        ("cuda:", "did you mean 'cuda'?"),
        ("cuda0", "did you mean 'cuda:0'?"),
        ("cuda 1", "did you mean 'cuda:1'?"),
        ("cudo", "did you mean 'cuda'?"),
        ("gpus", "did you mean 'gpu'?"),
        ("GPU", "did you mean 'gpu'?"),
        ("nvidia", "did you mean 'cuda'?"),
        ("rocm", "did you mean 'cuda'?"),
        ("metal", "did you mean 'mps'?"),
        ("m1", "did you mean 'mps'?"),
        ("cpu0", "did you mean 'cpu'?"),
        ("cpu:1", "only one 'cpu'"),
        ("auto:1", "'gpu:1'"),
        ("", "write one of 'auto', 'gpu', 'cuda'"),
        ("something", "write one of"),
        ("cuda:0,1", "write one of"),
        ("cuda:1:2", "write one of"),
        ("cuda:１", "write one of"),  # noqa: RUF001 - a digit that is not ASCII
        ("\0", "write one of"),
        (True, "found True of type bool"),
        (False, "found False of type bool"),
        (1.5, "found 1.5 of type float"),
        (b"cpu", "did you mean 'cpu'?"),
        (object(), "of type object"),
        ([], "found [] of type list"),
        (["cuda:0", "cuda:1"], "of type list"),
        ({}, "of type dict"),
        (str, "of type type"),
        (torch.zeros(1), "Device.of(...)"),
        (nn.Linear(1, 1), "Device.of(...)"),
    ],
    ids=lambda value: repr(value)[:30].partition(" at 0x")[0],
)
def test_a_bad_spec_is_our_error_with_a_suggestion(machine, spec: object, words: str) -> None:
    machine(cuda=2)
    message = fails(spec)
    assert words in message
    assert "`spec`" in message
    assert len(message) < 400
    if isinstance(spec, str) and len(spec) < 50:
        assert repr(spec) in message


def test_an_error_has_no_other_error_behind_it() -> None:
    with pytest.raises(DeviceSpecError) as caught:
        Device("cudo")
    assert caught.value.__context__ is None


def test_a_value_whose_repr_has_no_end_is_no_trouble() -> None:
    class Endless(deque[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(itertools.count())

    for spec in (Endless(), [Endless()], {"x": Endless()}):
        with pytest.raises(DeviceSpecError, match="<Endless>"):
            Device(spec)


def test_a_value_whose_repr_fails_is_no_trouble() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Odd" in fails(Odd())


def test_a_bad_fallback_is_named(cpu_only) -> None:
    assert "`fallback` is 'cpuu'" in fails("cuda", fallback="cpuu")


def test_what_was_asked_for_is_kept_as_text(machine) -> None:
    machine(cuda=2)
    kind = Enum("Kind", {"GPU": "cuda"}, type=str)
    specs = {None: "auto", "auto": "auto", 1: "1", 0: "0", kind.GPU: "cuda", "cpu:0": "cpu:0"}
    for spec, text in specs.items():
        assert Device(spec).requested == text
        assert type(Device(spec).requested) is str
    assert Device(torch.device("cuda")).requested == "cuda"


def test_answers_are_not_mixed_up_between_types_that_are_equal(machine) -> None:
    machine(cuda=2)
    assert str(Device(1)) == "cuda:1"
    fails(True)
    fails(1.0)
    assert str(Device("cpu")) == "cpu"
    fails(b"cpu")


class Refusing:
    """Whatever it is asked, it raises."""

    def refuse(self, *args: object) -> NoReturn:
        raise ArithmeticError

    __eq__ = __hash__ = __repr__ = __str__ = refuse
    __class__ = property(refuse)


class RefusingText(Refusing, str):
    pass


class RefusingNumber(Refusing, int):
    pass


# Functions: pytest asks each value what it is.
@pytest.mark.parametrize(
    "make",
    [Refusing, lambda: RefusingNumber(-1), lambda: 10**5000, lambda: -(10**5000)],
    ids=["object", "subclass of int", "long", "long and negative"],
)
def test_objects_that_refuse_to_be_asked_are_refused(machine, make) -> None:
    machine()
    spec = make()
    fails(spec)
    with pytest.raises(DeviceError):
        Device("mps", fallback=spec)
    with pytest.raises(DeviceError):
        Device.of(spec)


def test_texts_and_numbers_that_refuse_to_be_shown_are_what_they_are(machine) -> None:
    machine(cuda=2)
    assert str(Device(RefusingNumber(1))) == "cuda:1"
    assert str(Device(RefusingText("cpu"))) == "cpu"
    assert str(Device("cpu", fallback=Refusing())) == "cpu"


def test_a_rank_of_any_length_is_read(machine, monkeypatch) -> None:
    machine(cuda=2)
    monkeypatch.setenv("LOCAL_RANK", "9" * 5000)
    fails("cuda")


@given(st.text(max_size=12))
def test_any_text_is_a_device_or_our_error(text: str) -> None:
    try:
        type, index = parse(text, "`spec`")
    except DeviceSpecError:
        return
    assert type in ("auto", "gpu") or compat.torch_knows(type) or type in probe.known_types()
    assert index is None or 0 <= index <= 127


@given(
    st.sampled_from(["cuda", "xpu", "mps", "hpu", "mtia"]),
    st.one_of(st.none(), st.integers(0, 127)),
)
def test_parsing_agrees_with_torch(type: str, index: int | None) -> None:
    text = type if index is None else f"{type}:{index}"
    expected = torch.device(text)
    assert parse(text, "`spec`") == (expected.type, expected.index)
    assert parse(expected, "`spec`") == (expected.type, expected.index)


# --- What is there, and what is used instead.


def test_r086_auto_takes_the_best_there_is(machine) -> None:
    machine(xpu=2, mps=1)
    assert str(Device()) == "xpu:0"
    machine(mps=1)
    assert str(Device()) == "mps:0"
    machine(cuda=1, xpu=1, mps=1)
    assert str(Device()) == "cuda:0"


def test_r088_auto_without_an_accelerator_is_the_cpu_and_says_why(cpu_only) -> None:
    found = Device()
    assert (str(found), found.requested, found.reason) == ("cpu", "auto", "not_built")
    assert "no cuda in this torch. Fix: install another." in found.why


@pytest.mark.parametrize("reason", ["driver_too_old", "unsupported_arch", "broken"])
def test_r083_auto_warns_once_about_a_gpu_that_cannot_be_used(monkeypatch, reason) -> None:
    answers = {"cuda": Probe("cuda", 0, reason, "the GPU is no use", "mend it")}
    monkeypatch.setattr(
        choice, "probe", lambda type: answers.get(type, Probe(type, 0, "not_built", "no", "no"))
    )
    with pytest.warns(DeviceFallbackWarning, match="the GPU is no use. Fix: mend it") as caught:
        assert Device() == "cpu"
    assert Device().reason == reason
    assert len(caught) == 1


@pytest.mark.parametrize("reason", ["no_driver", "hidden", "no_device"])
def test_auto_is_silent_where_there_is_no_gpu_to_use(monkeypatch, reason) -> None:
    monkeypatch.setattr(choice, "probe", lambda type: Probe(type, 0, reason, "none", "none"))
    assert (str(Device()), Device().reason) == ("cpu", reason)


def test_the_most_telling_reason_wins(machine) -> None:
    machine(xpu=0)  # built, and no device: more to the point than CUDA that is not built
    assert Device().reason == "no_device"
    assert "no xpu here" in Device().why


def test_r084_a_fallback_is_one_warning_with_reason_and_remedy(cpu_only) -> None:
    with pytest.warns(DeviceFallbackWarning) as caught:
        found = Device("cuda")
    assert len(caught) == 1
    message = str(caught[0].message)
    for part in ("'cuda'", "not_built", "'cpu'", "no cuda in this torch", "install another"):
        assert part in message
    assert caught[0].filename == __file__
    assert (str(found), found.requested, found.reason) == ("cpu", "cuda", "not_built")


def test_the_same_cause_is_not_warned_about_twice(cpu_only) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            Device("cuda")
            Device(torch.device("cuda"))
            Device("cuda", fallback="auto")
        Device("cuda:1")
    assert [str(w.message).split()[0] for w in caught] == ["'cuda'", "'cuda:1'"]


def test_a_warning_that_is_an_error_is_raised_each_time(cpu_only) -> None:
    for _ in range(2):
        with pytest.raises(DeviceFallbackWarning):
            Device("cuda")


def test_without_a_fallback_it_is_an_error_with_the_same_text(cpu_only) -> None:
    with pytest.raises(DeviceUnavailableError) as caught:
        Device("cuda", fallback=None)
    error = caught.value
    assert (error.requested, error.reason) == ("cuda", "not_built")
    assert "no cuda in this torch. Fix: install another." in str(error)
    assert isinstance(error, RuntimeError)
    assert (pickle.loads(pickle.dumps(error)).reason, error.__context__) == ("not_built", None)


@pytest.mark.parametrize(
    ("value", "strict"),
    [
        *[(value, True) for value in ("1", "true", "yes", "on", "ON", " True ")],
        *[(value, False) for value in ("0", "", "false", "no", "off", "Off", " ")],
    ],
)
def test_devicekit_strict(cpu_only, monkeypatch, value: str, strict: bool) -> None:
    monkeypatch.setenv("DEVICEKIT_STRICT", value)
    with pytest.raises(DeviceUnavailableError if strict else DeviceFallbackWarning):
        Device("cuda")
    assert str(Device("auto")) == "cpu"


@pytest.mark.parametrize("value", ["maybe", "2", "-1", "strict"])
def test_devicekit_strict_that_is_neither_yes_nor_no(cpu_only, monkeypatch, value: str) -> None:
    monkeypatch.setenv("DEVICEKIT_STRICT", value)
    with pytest.raises(DeviceSpecError, match=f"DEVICEKIT_STRICT is '{value}'.*true, yes or on"):
        Device("cuda")
    assert str(Device("auto")) == "cpu"


@pytest.mark.parametrize("value", ["", " ", "  \t"])
def test_blank_devicekit_device_is_unset(cpu_only, monkeypatch, value: str) -> None:
    monkeypatch.setenv("DEVICEKIT_DEVICE", value)
    assert str(Device("auto")) == "cpu"


def test_another_fallback(machine) -> None:
    machine(xpu=2)
    with pytest.warns(DeviceFallbackWarning, match="using 'xpu:1' instead"):
        assert str(Device("cuda", fallback="xpu:1")) == "xpu:1"
    with pytest.raises(DeviceUnavailableError, match="'mps'"):
        Device("cuda", fallback="mps")


def test_devicekit_device_overrides_auto_only(machine, monkeypatch) -> None:
    machine(cuda=2)
    monkeypatch.setenv("DEVICEKIT_DEVICE", "cuda:1")
    assert (str(Device()), str(Device(None)), str(Device("cuda"))) == ("cuda:1", "cuda:1", "cuda:0")
    assert Device().requested == "cuda:1"
    monkeypatch.setenv("DEVICEKIT_DEVICE", "")
    assert str(Device()) == "cuda:0"
    monkeypatch.setenv("DEVICEKIT_DEVICE", "auto")
    assert str(Device()) == "cuda:0"
    monkeypatch.setenv("DEVICEKIT_DEVICE", "cudo")
    assert "the environment variable DEVICEKIT_DEVICE is 'cudo'" in fails("auto")
    monkeypatch.setenv("DEVICEKIT_DEVICE", "mps")
    with pytest.warns(DeviceFallbackWarning, match="'mps'"):
        assert str(Device()) == "cpu"


# --- Which of several.


@pytest.mark.parametrize("spec", ["cuda:7", "gpu:7", 7])
def test_r081_a_wrong_index_is_always_an_error(machine, monkeypatch, spec: object) -> None:
    machine(cuda=1)
    with pytest.raises(DeviceUnavailableError) as caught:
        Device(spec)
    message = str(caught.value)
    for part in (
        "cuda:7",
        "1 visible (cuda:0)",
        "LOCAL_RANK=unset",
        "CUDA_VISIBLE_DEVICES=unset",
        "invalid device ordinal",
    ):
        assert part in message
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(DeviceUnavailableError, match="CUDA_VISIBLE_DEVICES='3'"):
        Device(spec)


def test_local_rank(machine, monkeypatch) -> None:
    machine(cuda=2, current=0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(Device("cuda")) == "cuda:1"
    assert str(Device()) == "cuda:1"
    assert str(Device("gpu")) == "cuda:1"
    assert str(Device("cuda:0")) == "cuda:0"
    assert str(Device(0)) == "cuda:0"
    assert str(Device("cpu")) == "cpu"


@pytest.mark.parametrize("rank", [2, 7])
def test_r081_more_processes_than_devices(machine, monkeypatch, rank: int) -> None:
    machine(cuda=2)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    for spec in ("cuda", "auto", "gpu"):
        with pytest.raises(DeviceUnavailableError) as caught:
            Device(spec)
        message = str(caught.value)
        assert f"LOCAL_RANK={rank}" in message
        assert "2 visible (cuda:0, cuda:1)" in message


@pytest.mark.parametrize("text", ["abc", "1.5", "--1", "-2", "²"])
def test_a_local_rank_that_is_no_number(machine, monkeypatch, text: str) -> None:
    machine(cuda=2)
    monkeypatch.setenv("LOCAL_RANK", text)
    message = fails("cuda")
    assert "LOCAL_RANK" in message
    assert repr(text) in message
    assert str(Device("cuda:1")) == "cuda:1"
    assert str(Device("cpu")) == "cpu"
    with pytest.raises(DeviceUnavailableError):
        Device("cuda:2")


@pytest.mark.parametrize("text", ["", "-1", " "])
def test_a_local_rank_that_means_none(machine, monkeypatch, text: str) -> None:
    machine(cuda=2, current=1)
    monkeypatch.setenv("LOCAL_RANK", text)
    assert str(Device("cuda")) == "cuda:1"


def test_a_stray_local_rank_does_not_matter_on_the_cpu(cpu_only, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "7")
    assert str(Device()) == "cpu"


def test_without_an_index_it_is_the_current_device(machine) -> None:
    machine(cuda=4, current=3)
    assert str(Device("cuda")) == "cuda:3"
    assert str(Device(torch.device("cuda"))) == "cuda:3"
    assert str(Device(0)) == "cuda:0"


def test_r092_mps_is_not_for_distributed_runs(machine, monkeypatch) -> None:
    machine(mps=1)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    found = Device()
    assert (str(found), found.reason) == ("cpu", "no_device")
    assert "torch.distributed" in found.why
    with pytest.warns(UserWarning, match="'mps' is used in a distributed run.*Fix: run one"):
        assert str(Device("mps")) == "mps:0"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert str(Device()) == "mps:0"


def test_available(machine) -> None:
    machine(cuda=2, mps=1)
    assert Device.available() == ["cuda:0", "cuda:1", "mps:0", "cpu"]
    assert all(type(found) is Device for found in Device.available())
    machine()
    assert Device.available() == [Device("cpu")]


# --- A str that is a torch.device.


def test_r077_equality_and_hash() -> None:
    cpu = Device("cpu")
    assert cpu == torch.device("cpu")
    assert torch.device("cpu") == cpu
    assert cpu == "cpu"
    assert "cpu" == cpu  # noqa: SIM300
    assert (cpu != "cpu") is False
    assert cpu != torch.device("cuda:0")
    assert cpu != "cpu:0"
    assert cpu != 1
    assert hash(cpu) == hash(torch.device("cpu"))
    assert {torch.device("cpu"): 1}[cpu] == 1
    assert {cpu: 1}[torch.device("cpu")] == 1
    assert len({cpu, Device("cpu:0"), torch.device("cpu")}) == 1


def test_r075_one_device_has_one_text(machine) -> None:
    machine(cuda=2, mps=1)
    for short, long in [("cuda", "cuda:0"), ("cpu", "cpu:0"), ("mps", "mps:0"), ("meta", "meta:0")]:
        assert Device(short) == Device(long)
        assert hash(Device(short)) == hash(Device(long))
    x = torch.ones(1)
    assert x.to(Device("cpu:0")) is x
    assert x.device == Device("cpu")


def test_attributes(machine, monkeypatch) -> None:
    machine(cuda=2)
    gpu = Device("cuda:1")
    assert (gpu.type, gpu.index, gpu.is_accelerator) == ("cuda", 1, True)
    assert (gpu.requested, gpu.reason) == ("cuda:1", None)
    monkeypatch.setattr(device, "device_name", lambda type, index: f"GPU {type} {index}")
    assert gpu.name == "GPU cuda 1"
    cpu = Device("cpu")
    assert (cpu.type, cpu.index, cpu.is_accelerator) == ("cpu", None, False)
    assert not Device("meta").is_accelerator


def test_names_without_an_accelerator() -> None:
    assert Device("cpu").name == "cpu"
    assert Device("meta").name == "meta"


@pytest.mark.parametrize("attribute", ["torch", "type", "index", "reason", "requested", "why"])
def test_it_cannot_be_changed(attribute: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Device("cpu"), attribute, "cuda")


def test_f_strings_json_and_repr(machine) -> None:
    machine(cuda=2)
    gpu = Device("cuda:1")
    assert f"{gpu} {gpu:>8} {gpu!s}" == "cuda:1   cuda:1 cuda:1"
    assert "%s" % gpu == "cuda:1"  # noqa: UP031
    assert json.dumps({"device": gpu, gpu: 1}) == '{"device": "cuda:1", "cuda:1": 1}'
    assert repr(gpu) == "Device('cuda:1')"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_and_copy(machine, protocol: int) -> None:
    machine(cuda=2)
    gpu = Device("cuda")
    for other in (pickle.loads(pickle.dumps(gpu, protocol)), copy.copy(gpu), copy.deepcopy(gpu)):
        assert type(other) is Device
        assert other == gpu
        assert (other.torch, other.requested, other.reason) == (gpu.torch, "cuda", None)


def test_unpickling_asks_nothing(machine) -> None:
    machine(cuda=2)
    data = pickle.dumps(Device("cuda:1"))
    machine()
    there = pickle.loads(data)
    assert there == "cuda:1"
    assert there == torch.device("cuda:1")
    with pytest.warns(DeviceFallbackWarning):
        assert str(Device(there)) == "cpu"


def test_unpickling_a_type_that_torch_does_not_have_here() -> None:
    there = device._unpickle("npu:1", "npu:1", None, "")
    assert (str(there), there.type, there.index) == ("npu:1", "npu", 1)
    assert hash(there) == hash("npu:1")
    assert there == "npu:1"
    assert there != torch.device("cpu")
    assert pickle.loads(pickle.dumps(there)) == there
    with pytest.raises(DeviceUnavailableError, match="torch_npu"):
        _ = there.torch


def test_a_checkpoint_with_a_device_in_it() -> None:
    file = io.BytesIO()
    torch.save({"device": Device("cpu"), "weight": torch.ones(2)}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=Device("cpu"), weights_only=True)
    assert type(loaded["device"]) is Device
    assert loaded["device"] == "cpu"


def test_argparse_shows_our_sentence(capsys) -> None:
    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--device", type=Device, default="auto")
    assert parser.parse_args([]).device.requested == "auto"
    assert parser.parse_args(["--device", "cpu"]).device == torch.device("cpu")
    with pytest.raises(SystemExit):
        parser.parse_args(["--device", "cudo"])
    message = capsys.readouterr().err
    assert "argument --device: `spec` is 'cudo'" in message
    assert "did you mean 'cuda'?" in message


def test_argparse_shows_why_a_device_cannot_be_used(cpu_only, capsys, monkeypatch) -> None:
    monkeypatch.setenv("DEVICEKIT_STRICT", "1")
    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--device", type=Device)
    with pytest.raises(SystemExit):
        parser.parse_args(["--device", "cuda"])
    assert "install another" in capsys.readouterr().err


# --- Where torch takes a device.


@pytest.mark.parametrize("spec", ["cpu", "meta"])
def test_torch_takes_it(spec: str) -> None:
    here = Device(spec)
    assert torch.zeros(2, device=here).device == here
    assert torch.empty(1).to(here).device == here
    assert torch.empty(1).to(device=here, dtype=torch.float64).device == here
    assert torch.zeros_like(torch.empty(1), device=here).device == here
    assert nn.Linear(2, 2, device=here).weight.device == here
    assert nn.Linear(2, 2).to(here).weight.device == here
    assert torch.device(here) == here


def test_torch_takes_it_for_generators_and_checkpoints() -> None:
    cpu = Device("cpu")
    assert torch.Generator(device=cpu).device == cpu
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    assert torch.load(file, map_location=cpu).device == cpu
    file.seek(0)
    assert torch.load(file, map_location={"cuda:0": cpu}).device == cpu
    assert torch.utils.data.DataLoader([1, 2], generator=torch.Generator(device=cpu))
    with torch.autocast(Device("cpu").type):
        pass


def test_r091_a_checkpoint_from_a_gpu_opens_on_the_cpu(cpu_only) -> None:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, file)
    content = file.getvalue()
    there = io.BytesIO(content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:1"))
    if there.getvalue() == content:
        pytest.fail("torch writes the device of a storage in another way")
    with pytest.warns(DeviceFallbackWarning):
        here = Device("cuda")
    loaded = torch.load(_repacked(content), map_location=here)
    assert loaded["weight"].device == here


def _repacked(content: bytes) -> io.BytesIO:
    """The same checkpoint as if it had been saved on cuda:1."""
    import zipfile

    source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as out:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("data.pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:1")
            out.writestr(name, data)
    target.seek(0)
    return target


def test_with_device() -> None:
    meta = Device("meta")
    with meta as entered:
        assert entered is meta
        assert torch.zeros(1).device.type == "meta"
        with Device("cpu"), meta, meta:
            assert torch.zeros(1).device.type == "meta"
        assert torch.zeros(1).device.type == "meta"
    assert torch.zeros(1).device.type == "cpu"
    with pytest.raises(KeyError), meta:
        raise KeyError
    assert torch.zeros(1).device.type == "cpu"


def test_set_default_device() -> None:
    torch.set_default_device(Device("meta"))
    try:
        assert torch.zeros(1).device == Device("meta")
        assert str(Device("cpu")) == "cpu"
    finally:
        torch.set_default_device(None)


@pytest.mark.slow
def test_torch_compile_takes_the_torch_device_in_every_version() -> None:
    here = Device("cpu")
    torch._dynamo.reset()

    def inside(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2, device=here.torch) + x.to(here.torch)

    compiled = torch.compile(inside, fullgraph=True, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.slow
@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="measured on torch 2.13"
)
@pytest.mark.parametrize("spec", ["cpu", "meta"])
def test_torch_compile_without_a_graph_break(spec: str) -> None:
    here = Device(spec)
    torch._dynamo.reset()

    def inside(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2, device=here) + x.to(here)

    def given(x: torch.Tensor, where: Device) -> torch.Tensor:
        return torch.ones(2, device=where) + x.to(where)

    x = torch.ones(2)
    first = torch.compile(inside, fullgraph=True, backend="eager")(x)
    second = torch.compile(given, fullgraph=True, backend="eager")(x, here)
    for result in (first, second):
        assert result.device == here
        if spec == "cpu":
            assert torch.equal(result, torch.full((2,), 2.0))


# --- The device of data.


def test_of() -> None:
    assert Device.of(torch.zeros(1)) == "cpu"
    assert Device.of(torch.zeros(1, device="meta")) == "meta"
    assert Device.of({"a": [torch.zeros(1)], "b": (1, "x", None)}) == "cpu"
    assert Device.of(nn.Linear(2, 2)) == torch.device("cpu")
    assert Device.of(nn.Linear(2, 2).to("meta")) == "meta"
    assert Device.of(nn.BatchNorm1d(2, affine=False)) == "cpu"  # buffers only
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    assert Device.of(optimizer) == "cpu"
    assert Device.of(model).reason is None


def test_of_a_mix_names_it() -> None:
    batch = {"x": torch.zeros(2, 3), "y": [torch.zeros(1, device="meta", dtype=torch.int64)] * 5}
    with pytest.raises(DeviceMismatchError) as caught:
        Device.of(batch)
    assert str(caught.value).splitlines() == [
        "expected all tensors to be on the same device, but found cpu and meta",
        "",
        "  cpu   data['x']     float32[2, 3]",
        "  meta  data['y'][0]  int64[1]",
        "        data['y'][1]  int64[1]",
        "        data['y'][2]  int64[1]",
        "        and 2 more",
        "",
        '  fix: data = devicekit.to_device(data, "cpu")',
    ]


def test_of_a_split_module_and_optimizer() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("meta"))
    with pytest.raises(DeviceMismatchError) as caught:
        Device.of(model)
    assert "weight" in str(caught.value)
    assert "model" in str(caught.value)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DeviceMismatchError, match=r"optimizer\.param_groups\[0\]\['params'\]\[2\]"):
        Device.of(optimizer)


def test_r070_a_module_without_parameters() -> None:
    with pytest.raises(DeviceError, match="found no tensor in `x`, a ReLU"):
        Device.of(nn.ReLU())
    replica = nn.Sequential(nn.ReLU(), nn.ReLU())
    object.__setattr__(replica[1], "weight", torch.zeros(1, device="meta"))
    assert Device.of(replica) == "meta"


@pytest.mark.parametrize(
    "nothing",
    [None, [], {}, "cpu", 3, object()],
    ids=lambda value: repr(value).partition(" at 0x")[0],
)
def test_of_something_without_a_tensor(nothing: object) -> None:
    with pytest.raises(DeviceError, match="found no tensor"):
        Device.of(nothing)


# --- A simulated accelerator.


@needs_simulation
def test_the_simulated_accelerator(simulated_accelerator) -> None:
    name = simulated_accelerator.name
    assert Device() == Device("gpu") == Device(name) == f"{name}:0"
    assert Device(f"{name}:1").index == Device(1).index == 1
    assert Device.available() == [*(f"{name}:{i}" for i in range(2)), "cpu"]
    with pytest.raises(DeviceUnavailableError, match="2 visible"):
        Device(f"{name}:2")
    x = torch.ones(2, device=Device(f"{name}:1"))
    assert Device.of(x) == f"{name}:1"
    assert Device.of(x) == x.device
    with pytest.raises(DeviceMismatchError, match=rf"found {name}:1 and cpu"):
        Device.of([x, torch.ones(1)])
    assert Device(name).name
    getattr(torch, name).set_device(1)
    assert Device(name) == f"{name}:1"
    with Device(f"{name}:0"):
        assert torch.zeros(1).device == torch.device(name, 0)


@needs_simulation
def test_after_the_simulation_it_is_gone(simulated_accelerator) -> None:
    name = simulated_accelerator.name
    data = pickle.dumps(Device(name))
    simulated_accelerator.stop()
    with pytest.raises(DeviceUnavailableError, match="not running") as caught:
        Device(name, fallback=None)
    assert caught.value.reason == "no_device"
    if not probe.probe("cuda").count:
        assert Device() == "cpu"
        assert Device().reason == probe.probe("cuda").reason
    assert pickle.loads(data) == f"{name}:0"


@needs_simulation
def test_the_simulated_cuda() -> None:
    before = Device()
    with simulate("cuda", count=2):
        assert Device() == Device("gpu") == Device("cuda") == "cuda:0"
        assert Device.available() == ["cuda:0", "cuda:1", "cpu"]
        assert not torch.cuda.is_initialized()
        x = torch.ones(2, device=Device("cuda:1"))
        assert Device.of(x) == x.device == torch.device("cuda:1")
        torch.cuda.set_device(1)
        assert Device("cuda") == "cuda:1"
        with pytest.raises(DeviceUnavailableError, match="2 visible"):
            Device("cuda:2")
        with mock.patch("torch.cuda.is_available", return_value=False):
            assert Device().type != "cuda"
    assert Device() == before


# --- What can change an answer changes it.


@pytest.mark.filterwarnings("ignore::devicekit.errors.DeviceFallbackWarning")
def test_mocks_are_believed_at_once() -> None:
    before = [Device(), Device("cuda")]  # kept
    with mock.patch("torch.cuda.is_available", return_value=True) as available:
        with mock.patch("torch.cuda.device_count", return_value=2) as count:
            assert Device("cuda:1") == "cuda:1"
            assert Device() == "cuda:0"
            count.return_value = 1
            with pytest.raises(DeviceUnavailableError):
                Device("cuda:1")
            available.return_value = False
            assert Device().type != "cuda"
        with mock.patch("torch.cuda.device_count", return_value=0):
            assert Device("cuda") == "cpu"
    with mock.patch("torch.backends.mps.is_available", return_value=True):
        assert Device("mps") == "mps:0"
    with mock.patch("torch.cuda.device_count", return_value=3):
        assert Device().type != "cuda" or torch.cuda.is_available()
    assert [Device(), Device("cuda")] == before


def test_the_current_device_is_looked_at_each_time(machine, monkeypatch) -> None:
    machine(cuda=4)
    monkeypatch.setattr(compat, "current_index", lambda type: torch.cuda.current_device())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    for index in (0, 3, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda index=index: index)
        assert Device("cuda") == f"cuda:{index}"


def test_threads_agree(machine) -> None:
    machine(cuda=2)
    found: list[Device] = []
    threads = [threading.Thread(target=lambda: found.append(Device("cuda"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["cuda:0"] * 8


def test_os_environ_may_be_replaced(machine, monkeypatch) -> None:

    machine(cuda=2)
    assert Device("cuda") == "cuda:0"
    monkeypatch.setattr(os, "environ", {"LOCAL_RANK": "1"})
    assert Device("cuda") == "cuda:1"


def test_asking_again_is_fast() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Device("cuda")
        # The processor's time and the best of many, as other processes may be running. On a quiet
        # machine it is below 2 us; the bound leaves room for a slower one.
        timer = timeit.Timer(lambda: Device("cuda"), timer=time.process_time)
        best = min(timer.repeat(number=1000, repeat=30)) / 1000
    assert best < 6e-6


@pytest.mark.slow
def test_a_warning_points_at_the_line_of_a_script(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nimport devicekit\n\n"
        "device = devicekit.Device('cuda')\nprint(device)\n"
    )
    result = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert result.stdout == "cpu\n"
    assert "train.py:5: DeviceFallbackWarning: 'cuda' cannot be used here" in result.stderr
    assert result.stderr.count("Warning") == 1


@needs_simulation
@pytest.mark.slow
def test_r081_torchrun_gives_each_process_its_device(tmp_path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(
        "import sys\n"
        "from devicekit import Device\n"
        "from devicekit.testing import simulate\n"
        "with simulate('cuda', count=int(sys.argv[1])):\n"
        "    print('device', Device('cuda', fallback=None), flush=True)\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}

    def run(count: int) -> subprocess.CompletedProcess[str]:
        command = [*launch, str(script), str(count)]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    enough = run(2)
    assert enough.returncode == 0, enough.stderr
    assert sorted(enough.stdout.split()) == ["cuda:0", "cuda:1", "device", "device"]
    too_few = run(1)
    assert too_few.returncode != 0
    assert "'cuda' was requested with LOCAL_RANK=1, 1 visible (cuda:0)" in too_few.stderr


def test_a_subclass_is_refused_as_its_objects_would_lose_their_methods():
    with pytest.raises(TypeError, match="Device cannot be a base class"):
        type("Mine", (Device,), {})
