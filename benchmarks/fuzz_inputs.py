"""A long run of arbitrary input through all that reads some.

    nice -n 15 python benchmarks/fuzz_inputs.py --minutes 60   # all targets, one after another
    python benchmarks/fuzz_inputs.py --again smi:7             # a failing block, made small

What may come out is an answer or an error of ours: one of `devicekit.errors`, or a ValueError or
TypeError that a line of the package raises. Anything else is a failure, and so is an example that
takes longer than `LIMIT_S`, and a file, thread or process that is left open. Each target runs in a
process of its own, in blocks of `EXAMPLES`, each with the next seed.
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import io
import itertools
import json
import linecache
import os
import re
import reprlib
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

import torch
from common import facts
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from rich.console import Console

import devicekit
from devicekit import archs, cli, compat, device, driver, units
from devicekit.device import Device
from devicekit.diagnosis import messages
from devicekit.driver import nvml as driver_nvml
from devicekit.driver._child import MARK
from devicekit.env import collect, rules, text, toolkits
from devicekit.errors import DeviceError
from devicekit.monitor import Snapshot, smi, visible
from devicekit.monitor.table import as_rich
from devicekit.probe import cuda
from devicekit.testing import FakeNvml
from devicekit.testing.nvml import ERRORS
from devicekit.testing.strategies import grow
from devicekit.tree import find_hidden, find_tensors, map_tensors, register, unregister

EXAMPLES = 200  # in a block
LIMIT_S = 10.0  # for one example
MOST_MEMORY = 8 * 2**30  # bytes: what wants more gets a MemoryError
MOST_FAILURES = 20  # of a target, then it stops
PACKAGE = os.path.dirname(devicekit.__file__) + os.sep
RESULT = Path(__file__).parent / "results" / "fuzz_inputs.json"

Target = Callable[..., None]
TARGETS: dict[str, tuple[Target, dict[str, st.SearchStrategy[Any]]]] = {}


def target(**strategies: st.SearchStrategy[Any]) -> Callable[[Target], Target]:
    """Makes a function a target, under its name, with these arguments."""

    def add(function: Target) -> Target:
        TARGETS[function.__name__] = (function, strategies)
        return function

    return add


# Texts and numbers ...

LONG = st.sampled_from([50, 700, 5000]).map(lambda n: "9" * n)
LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
NUMBERS = st.integers(-2, 200) | st.integers(-(2**63), 2**64 - 1) | st.sampled_from([0, 2**64 - 1])


def words(*pieces: str) -> st.SearchStrategy[str]:
    """Texts put together from pieces of the real ones, digits without end, and anything."""
    piece = st.sampled_from([*pieces, "", " ", ",", ":", "-", "0", "1", "\n"])
    return st.lists(piece | LONG | st.text(LETTERS, max_size=3), max_size=6).map("".join)


UUIDS = words("GPU-", "MIG-", "00000001-0000-4000-8000-000000000000", "1a2b")
VERSIONS = words("550", "535.98", ".", "12", "12.4", "13.0", "V12.4.131", "release ", "cu", "git")
SPECS = words("auto", "gpu", "cuda", "cpu", "mps", "xpu", "meta", "sim", "hpu", "Cuda", "_", "256")
RAW = st.binary(max_size=8).map(lambda x: os.fsdecode(x.replace(b"\0", b"")))


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    """One of these, which hypothesis need not be able to show."""
    return st.integers(0, len(values) - 1).map(lambda i: values[i])


VARIABLES: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys((*cuda.MASKS, "ZE_AFFINITY_MASK", "NVIDIA_VISIBLE_DEVICES"), UUIDS),
    "CUDA_DEVICE_ORDER": words("PCI_BUS_ID", "FASTEST_FIRST"),
    "LOCAL_RANK": words("7", "rank"),
    "RANK": words("7"),
    "WORLD_SIZE": words("8"),
    "DEVICEKIT_DEVICE": SPECS,
    "DEVICEKIT_STRICT": words("yes", "false", "on"),
    "PYTORCH_CUDA_ALLOC_CONF": words("max_split_size_mb", "expandable_segments:True"),
    "PYTORCH_NVML_BASED_CUDA_CHECK": words("1"),
    "COLUMNS": words("80", "120"),
    "LINES": words("24"),
    "TERM": words("dumb", "xterm-256color"),
    "NO_COLOR": words("1"),
    "FORCE_COLOR": words("1"),
    "HOME": words("/root", "~", "/", ".", "~ada"),
    "USER": words("ada"),
    "LOGNAME": words("lovelace"),
}
# Many are not set: a bad value must not hide what the others do.
ENVIRONS = st.lists(st.sampled_from([*VARIABLES]), max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: VARIABLES[name] | RAW for name in names})
)


@contextlib.contextmanager
def pretended(environ: Mapping[str, str], **places: object) -> Iterator[None]:
    """Puts values in the place of others: `name__attribute=value` for the modules in `MODULES`."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, environ))
        for place, value in places.items():
            owner, _, name = place.rpartition("__")
            stack.enter_context(mock.patch.object(MODULES[owner], name, value))
        device.forget()
        yield
    device.forget()


MODULES: dict[str, Any] = {
    "collect": collect,
    "compat": compat,
    "cuda_backend": torch.backends.cuda,
    "driver": driver,
    "toolkits": toolkits,
    "version": torch.version,
    "visible": visible,
}


# Hostile objects: whatever is asked of them, they raise or lie ...


class Hostile(Exception):
    """What a hostile object raises."""


def refuse(*args: object, **kwargs: object) -> NoReturn:
    raise Hostile


class Refusing:
    """A descriptor that raises when it is read, from an object or from the class."""

    def __get__(self, x: object, cls: type | None = None) -> NoReturn:
        raise Hostile


METHODS = (
    *("__eq__", "__hash__", "__len__", "__iter__", "__getitem__", "__contains__", "__bool__"),
    *("__repr__", "__str__", "__getattribute__", "__getattr__", "__setattr__", "__setitem__"),
    *("__copy__", "__deepcopy__", "__reduce_ex__", "__init__", "__new__", "__init_subclass__"),
    *("keys", "values", "items", "copy", "update", "append", "extend", "add", "to", "cpu"),
)
PLACES = ("__class__", "__dict__", "device", "first", "data", "maxlen", "default_factory", "to")
LIES = ("_fields", "__dataclass_fields__", "__attrs_attrs__", "n_sequence_fields", "to", "first")


def changes() -> Iterator[dict[str, object]]:
    """What the classes have that ordinary ones have not."""
    yield from ({name: refuse} for name in METHODS)
    yield from ({name: property(refuse)} for name in PLACES)
    yield from ({name: Refusing()} for name in (*PLACES[1:], *LIES))
    yield from ({name: lie} for name in LIES for lie in (3, ("a",), "ab", property(refuse)))
    yield {"__eq__": lambda self, other: torch.ones(3)}
    yield {"__slots__": ("first", "__secret")}
    yield {"__len__": lambda self: -1}
    yield {"__len__": lambda self: 2**70}
    yield {"__iter__": lambda self: itertools.count()}


class Things(Mapping[Any, Any]):
    """A mapping that is only one by its methods."""

    def __getitem__(self, key: object) -> Any:
        return vars(self)[str(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))


BASES: tuple[type, ...] = (
    *(object, dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, UserDict),
    *(UserList, ChainMap, SimpleNamespace, Things, Exception, str),
)
"""No modules: torch itself cannot list the parts of one that refuses or cannot be hashed."""


def odd_classes() -> list[type]:
    """Each base with each change that it takes."""
    found = []
    for base, change in itertools.product(BASES, changes()):
        body = {"__dataclass_fields__": {}, **change} if base is object else change
        if base is Things and "__dict__" in change:
            continue  # only its own methods reach its state, and they raise
        with contextlib.suppress(TypeError, ValueError):  # such as slots in a tuple
            found.append(type("Odd", (base,), dict(body)))
    return found


ODD_CLASSES = odd_classes()
FILL: tuple[tuple[type, Callable[[Any, list[Any]], object]], ...] = (
    (OrderedDict, lambda x, v: [OrderedDict.__setitem__(x, i, e) for i, e in enumerate(v)]),
    (dict, lambda x, v: dict.update(x, enumerate(v))),
    (list, list.extend),
    (deque, deque.extend),
)
NAMES = ("first", "second", "class", "ﬁ", "__doc__", "__class__", "a b", "größe")


def odd(cls: type, values: list[Any]) -> Any:
    """An object of a class, past whatever the class does to its making."""
    base = next(base for base in cls.__mro__[1:] if base in BASES)
    new: Any = base.__new__
    x = new(cls, values[:1]) if base in (tuple, frozenset) else new(cls)
    if base in (UserDict, UserList, ChainMap):
        with contextlib.suppress(Exception):  # it refuses to be filled
            base.__init__(x)
    for kind, fill in FILL:
        if issubclass(cls, kind):
            fill(x, values)
            break
    for name, value in zip(NAMES, values, strict=False):
        with contextlib.suppress(Exception):  # its class has no room for it
            object.__setattr__(x, name, value)
    return x


KEYS = one_of(
    *(10**5000, float("nan"), float("inf"), -0.0, (1, (2, ("a",))), "ﬁ", "\ud800", b"\0", len)
)


@st.composite
def trees(draw: st.DrawFn, hostile: bool = True) -> Any:
    """Structures with shared parts, cycles and odd objects, some of them very deep."""
    tree: Any = grow(lambda n: draw(st.integers(0, n - 1)), cycles=True)
    for _ in range(draw(st.integers(0, 3)) if hostile else 0):
        x = odd(draw(st.sampled_from(ODD_CLASSES)), [torch.ones(1), tree, [tree, torch.zeros(2)]])
        tree = draw(one_of({"x": x, "tree": tree}, [tree, x], x))
    if draw(st.booleans()):
        tree = {draw(KEYS): tree, "tree": [tree]}
        key: Any = ()
        for _ in range(draw(st.sampled_from([0, 3, 60, 800]))):
            key = (key,)
        tree[key] = [torch.ones(1)]
    wrap = draw(st.sampled_from(WRAPS))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 1, 3, 30, 1500]))):
        tree = wrap(tree)
    return tree


WRAPS: tuple[Callable[[Any], Any], ...] = (
    lambda x: [x],
    lambda x: (x,),
    lambda x: {"x": x},
    lambda x: UserDict(x=x),
    lambda x: SimpleNamespace(x=x),
    lambda x: types.MappingProxyType({"x": x}),
    lambda x: types.MappingProxyType(things(x)),
)


def things(x: Any) -> Things:
    found = Things()
    found.x = x
    return found


def is_told(error: BaseException) -> bool:
    """Whether a hostile object raised, and the error says where."""
    return isinstance(error, Hostile) and any("data" in note for note in notes(error))


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


# Devices ...


class Numberlike(int):
    """An int that cannot be shown."""

    __repr__ = __str__ = __hash__ = refuse  # type: ignore[assignment]


class Textlike(str):
    """A str with another text."""

    __str__ = __repr__ = __hash__ = refuse  # type: ignore[assignment]


ANY_SPEC = (
    SPECS
    | st.text()
    | NUMBERS
    | st.none()
    | one_of(10**5000, -(10**5000), True, 1.5, b"cuda", torch.device("cuda", 3))
    | one_of(torch.ones(2), torch.nn.Linear(1, 1), Numberlike(1), Textlike("cpu"))
    | st.builds(odd, st.sampled_from(ODD_CLASSES), st.just([1, 2]))
)


@target(spec=ANY_SPEC, fallback=ANY_SPEC, environ=ENVIRONS)
def specs(spec: Any, fallback: Any, environ: dict[str, str]) -> None:
    with pretended(environ):
        made = Device(spec, fallback=fallback)
        assert torch.device(str(made)) == made.torch == made
        assert isinstance(made.name + made.why, str)
        assert Device.available()


@target(data=trees() | ANY_SPEC)
def devices_of(data: Any) -> None:
    Device.of(data)


@target(
    found=st.lists(st.tuples(UUIDS | st.none(), UUIDS | st.none()), max_size=3), environ=ENVIRONS
)
def masks(found: list[tuple[str | None, str | None]], environ: dict[str, str]) -> None:
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    visible.visible_entries(mask)
    visible.cuda_order(found, [uuid for uuid, _ in found if uuid], environ, lambda: None)
    with pretended(environ):
        cuda._visible(tuple(driver.Gpu(name or "", uuid or "") for uuid, name in found))


# Structures ...


@target(data=trees())
def structures(data: Any) -> None:
    found = list(find_tensors(data))
    list(find_hidden(data))
    for path, tensor in found[:200]:
        if len(path) > 300:  # Python's own parser gives up on deep ones
            continue
        try:
            there = eval(path, {"data": data})
        except (Hostile, OverflowError, ValueError):  # reading is what this object refuses
            continue
        assert there is tensor, f"{path} leads elsewhere"
    try:
        map_tensors(data, torch.clone)
        devicekit.to_device(data, "meta")
        devicekit.to_device(data, "meta", strict=True)
    except Hostile as error:
        if not is_told(error):
            raise


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | KEYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | st.lists(inner, max_size=3).map(iter)
    ),
    max_leaves=6,
)


@target(data=trees(hostile=False), skip=ANYTHING)
def skipping(data: Any, skip: Any) -> None:
    devicekit.to_device(data, "meta", skip=skip)


class Closed:
    """A type of which the walker knows nothing until it is registered."""

    def __init__(self, inside: object) -> None:
        self.inside = inside


PATHS = st.sampled_from([".inside", "['x']", "", "x", ".", 3, None, ("a",)])


@target(
    data=trees(hostile=False),
    answers=st.lists(ANYTHING | st.dictionaries(PATHS, st.just(torch.ones(1))), min_size=1),
    unflattened=st.none() | ANYTHING,
)
def registered(data: Any, answers: list[Any], unflattened: Any) -> None:
    given_out = itertools.cycle(answers)
    register(
        Closed,
        lambda x: next(given_out),
        lambda x, new: unflattened if unflattened is not None else Closed(new),
    )
    try:
        list(find_tensors([Closed(data)]))
        map_tensors({"x": Closed(data)}, torch.clone)
    except Hostile:  # the mapping that was given refuses to be read
        pass
    finally:
        unregister(Closed)


# NVIDIA's library, through its binding and through ctypes ...

NVML_TEXTS = st.sampled_from(["NVIDIA H100", "", "é", "a\0b", "a|b\nc", "[N/A]"]) | st.text()
ROWS = st.lists(
    st.builds(
        SimpleNamespace,
        pid=st.integers(1, 2**32 - 1) | st.just(os.getpid()),
        usedGpuMemory=NUMBERS | st.none(),
        smUtil=NUMBERS,
        timeStamp=NUMBERS,
    ),
    max_size=4,
)
PAIRS = st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
MEMORY = st.builds(SimpleNamespace, total=NUMBERS, used=NUMBERS, free=NUMBERS, reserved=NUMBERS)
ANSWERS: dict[str, st.SearchStrategy[Any]] = {
    "SystemGetDriverVersion": NVML_TEXTS | VERSIONS,
    "Name": NVML_TEXTS | NVML_TEXTS.map(str.encode) | st.binary(),
    "UUID": UUIDS | st.binary(),
    "PciInfo": st.builds(SimpleNamespace, busId=NVML_TEXTS | st.binary()),
    "Capability": PAIRS,
    "MigMode": PAIRS | st.just((1, 1)),
    "Rates": st.builds(SimpleNamespace, gpu=NUMBERS, memory=NUMBERS),
    "MemoryInfo": MEMORY,
    "Processes": ROWS,
    "Processes_v2": ROWS,
    "Processes_v3": ROWS,
    "ProcessUtilization": ROWS,
    "Count": st.integers(0, 4) | st.integers(0, 2**32 - 1),
}


def answer_of(function: str) -> st.SearchStrategy[Any]:
    """What a function of NVML may say: a value of its kind, an error, or that it is not there."""
    kind = next((end for end in ANSWERS if function.endswith(end)), "")
    codes = st.sampled_from([code for code, _ in ERRORS.values()]) | st.integers(0, 2**31)
    return ANSWERS.get(kind, NUMBERS) | codes.map(ErrorCode) | st.just(None)


class ErrorCode(int):
    """The answer is this error."""


FUNCTIONS = sorted(
    name for name in vars(FakeNvml()) if name.startswith("nvml") and name[4].isupper()
)
NEEDED = re.compile("Handle|Init|Shutdown")  # every binding has them
NVML_ANSWERS = st.lists(
    st.sampled_from([name for name in FUNCTIONS if not NEEDED.search(name)]), max_size=6
).flatmap(lambda names: st.fixed_dictionaries({name: answer_of(name) for name in names}))
PROCESSES = st.builds(
    FakeNvml.Process, pid=st.integers(1, 2**31), name=NVML_TEXTS | st.none(), sm=NUMBERS | st.none()
)
GPUS = st.builds(
    FakeNvml.Gpu,
    name=NVML_TEXTS,
    uuid=UUIDS | st.none(),
    capability=PAIRS | st.just((9, 0)),
    driver_model=st.sampled_from([None, "WDDM", "TCC", "MCDM"]),
    lost=st.sampled_from([None, None, None, *ERRORS]),
    processes=st.lists(PROCESSES, max_size=3).map(tuple),
    mig=st.lists(
        st.builds(FakeNvml.Mig, uuid=UUIDS, processes=st.lists(PROCESSES, max_size=2).map(tuple)),
        max_size=2,
    ).map(tuple),
)


def answering(fake: FakeNvml, answers: Mapping[str, Any]) -> None:
    """Has the functions of a fake NVML answer this."""
    for name, answer in answers.items():
        if answer is None:
            vars(fake).pop(name, None)
        elif isinstance(answer, ErrorCode):
            setattr(fake, name, lambda *args, code=int(answer), **kw: throw(fake.NVMLError(code)))
        else:
            setattr(fake, name, lambda *args, answer=answer, **kw: answer)


def throw(error: Exception) -> NoReturn:
    raise error


@target(
    gpus=st.lists(GPUS, max_size=3),
    answers=NVML_ANSWERS,
    options=st.fixed_dictionaries(
        {},
        optional={
            "init_error": st.sampled_from([*ERRORS]),
            "binding": st.sampled_from(["nvidia-ml-py", "old", "foreign"]),
            "driver": st.sampled_from(["550.54.14", "535.54", "470.1", "390.48"]),
            "cuda_driver": st.integers(-(2**31), 2**31 - 1),
        },
    ),
    order=st.none() | st.lists(UUIDS, max_size=3),
    asked=SPECS | NUMBERS | st.none(),
    width=st.integers(1, 300),
    environ=ENVIRONS,
)
def nvml(
    gpus: list[Any],
    answers: dict[str, Any],
    options: dict[str, Any],
    order: list[str] | None,
    asked: Any,
    width: int,
    environ: dict[str, str],
) -> None:
    fake = FakeNvml(gpus, **options)
    answering(fake, answers)
    with pretended(environ, visible__driver_order=lambda: order), fake:
        shot = devicekit.snapshot()
        assert (shot.reason is None) == bool(shot.gpus)
        check_snapshot(shot, width)
        command("monitor")
    assert fake.open_count == 0, "NVML is left open"
    shot.gpu(asked)


def check_snapshot(shot: Snapshot, width: int) -> None:
    """Shows a snapshot in each form."""
    json.dumps(shot.to_dict(), allow_nan=False)
    text.scrub(str(shot))
    Console(file=io.StringIO(), width=width, height=9).print(as_rich(shot, width=width))


def command(*arguments: str) -> None:
    """Runs the command line, in each form of its output."""
    for form in ((), ("--json",), ("--markdown",)):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            assert cli.main([*arguments, *form]) in (0, 1, 2)
        if form == ("--json",):
            json.loads(output.getvalue() or "null")


class Library:
    """A library of NVIDIA's as ctypes sees it: its functions fill what they are pointed to."""

    def __init__(self, codes: list[int], numbers: list[int], texts: list[bytes]) -> None:
        self._codes, self._numbers, self._texts = map(itertools.cycle, (codes, numbers, texts))

    def __getattr__(self, name: str) -> Any:
        code = next(self._codes)
        if code == -1 and name != "nvmlShutdown":
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            for argument in arguments:
                if isinstance(argument, ctypes.Array):
                    argument.value = next(self._texts)[: len(argument)]
                elif hasattr(argument, "_obj") and isinstance(argument._obj, ctypes._SimpleCData):
                    argument._obj.value = self._value(argument._obj)
            return code

        return (lambda code: next(self._texts)) if name == "nvmlErrorString" else call

    def _value(self, place: Any) -> Any:
        return next(self._texts) if isinstance(place, ctypes.c_char_p) else next(self._numbers)


SMALL = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 9, 15, 18, 100, 999, -1])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
# What the child process says: its form is ours, its values are the driver's.
CHILD_GPU = st.fixed_dictionaries(
    {"name": st.text(), "uuid": UUIDS, "capability": PAIRS.map(list)},
)
CHILD = st.fixed_dictionaries(
    {"code": st.sampled_from([0, 0, 100, 3, 999]), "words": st.text()},
    optional={"cuda": NUMBERS},
).flatmap(lambda said: st.lists(CHILD_GPU, max_size=3).map(lambda gpus: {**said, "gpus": gpus}))


@target(
    libraries=st.tuples(st.booleans(), st.booleans()),
    codes=st.lists(SMALL, min_size=1),
    numbers=st.lists(st.integers(0, 4) | st.integers(-(2**31), 2**32), min_size=1),
    texts=st.lists(st.binary(max_size=95) | st.just(b"550.54.14"), min_size=1),
    printed=st.text() | JSON.map(json.dumps) | CHILD.map(lambda x: MARK + json.dumps(x)),
    status=st.sampled_from([0, 0, 0, 1, -11]),
    build=VERSIONS | st.sampled_from(["12.8", "13.0"]),
    kernels=st.lists(words("sm_", "compute_", "90", "a", "f", "100"), max_size=3),
    environ=ENVIRONS,
)
def drivers(
    libraries: tuple[bool, bool],
    codes: list[int],
    numbers: list[int],
    texts: list[bytes],
    printed: str,
    status: int,
    build: str,
    kernels: list[str],
    environ: dict[str, str],
) -> None:
    library = Library(codes, numbers, texts)

    def load(name: str) -> Library:
        if not libraries["nvml" in name or "nvidia-ml" in name]:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        return library

    pretences = {
        "version__cuda": build,
        "cuda_backend__is_built": lambda: True,
        "compat__cuda_arch_list": lambda: tuple(kernels),
        "driver__load_library": load,
        "driver__run_python": lambda *args, **kw: subprocess.CompletedProcess("", status, printed),
    }
    with pretended(environ, **pretences):
        driver_nvml.ask_nvml()
        driver.ask_driver()
        answer = devicekit.probe.probe("cuda")
        assert not answer.sentence.startswith("asking for 'cuda' failed"), answer.sentence
        visible.driver_order()
        cuda.device_name(0)
        command("devices")


# Other programs: nvidia-smi, nvcc, torch in a process of its own ...

CELLS = words(
    "[N/A]", "[Not Supported]", "40", "-", "1e400", "12.5", "MiB", '"', "\\", "inf", "nan"
)
LINES = st.lists(st.lists(CELLS | LONG, min_size=10, max_size=14).map(", ".join), max_size=4)
OUTPUTS = LINES.map("\n".join) | st.text(LETTERS) | st.just('"').map(lambda x: x + "x" * 200_000)
STATUSES = st.sampled_from([0, 0, 0, 0, 1, 6, 255])


def program(path: Path, answers: Mapping[str, str], status: int) -> None:
    """Writes a program that prints an answer by the start of its first argument."""
    cases = []
    for number, (start, answer) in enumerate(answers.items()):
        path.with_suffix(f".{number}").write_text(answer, "utf-8", "surrogateescape", newline="")
        cases.append(f"{start}*) cat '{path.with_suffix(f'.{number}')}';;")
    path.write_text(f'#!/bin/sh\ncase "$1" in {" ".join(cases)} esac\nexit {status}\n')
    path.chmod(0o755)


@target(gpu=OUTPUTS, apps=OUTPUTS, status=STATUSES, environ=ENVIRONS, width=st.integers(1, 300))
def smi_output(gpu: str, apps: str, status: int, environ: dict[str, str], width: int) -> None:
    smi.number(gpu)
    with tempfile.TemporaryDirectory() as folder:
        answers = {"--query-gpu": gpu, "--query-compute-apps": apps}
        program(Path(folder, "nvidia-smi"), answers, status)
        path = os.pathsep.join((folder, os.environ["PATH"]))
        with (
            pretended({**environ, "PATH": path}, visible__driver_order=lambda: None),
            mock.patch.dict(sys.modules, {"pynvml": None}),
        ):
            check_snapshot(devicekit.snapshot(), width)


@target(
    printed=OUTPUTS | VERSIONS,
    status=STATUSES,
    named=st.sampled_from(["", "here", "loop", "secret", "gone", "x" * 300, "a:b"]) | RAW,
    on_path=st.lists(st.sampled_from(["here/bin", "loop", "secret", "x" * 300, "~", "."]) | RAW),
)
def compilers(printed: str, status: int, named: str, on_path: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "here" / "bin").mkdir(parents=True)
        (root / "loop").symlink_to(root / "loop")
        (root / "secret").mkdir(0o000)
        program(root / "here" / "bin" / "nvcc", {"--version": printed}, status)
        environ = {
            "CUDA_HOME": named and f"{root}/{named}",
            "PATH": os.pathsep.join(f"{root}/{name}" for name in on_path),
        }
        with mock.patch.object(toolkits, "_FOLDER", root):
            toolkits.cuda_home(environ)
            toolkits.find_nvccs(environ)


TORCH_FACTS = st.fixed_dictionaries(
    {
        "version": VERSIONS,
        "cuda": st.none() | VERSIONS | st.sampled_from(["12.8", "11.8", "10.2", "9.0"]),
        "hip": st.none() | VERSIONS,
        "xpu": st.none() | VERSIONS,
        "archs": st.none() | st.lists(words("sm_", "compute_", "90", "a"), max_size=3),
        "cudnn": st.none() | NUMBERS,
        "nccl": st.none() | st.lists(NUMBERS, max_size=4),
        "available": st.none() | st.booleans(),
        "devices": st.lists(
            st.fixed_dictionaries(
                {"index": st.integers(0, 4)},
                optional={
                    "name": st.text(),
                    "capability": VERSIONS,
                    "uuid": st.none() | UUIDS,
                    "arch": st.none() | st.text(),
                    "memory": NUMBERS,
                    "kernel": st.just("ok") | st.text(),
                },
            ),
            max_size=3,
        ),
        "errors": st.dictionaries(st.text(max_size=3), st.text(), max_size=2),
    },
    optional={"not_available": st.text()},
)
WORDS = st.text(min_size=1)
NO_TORCH = st.fixed_dictionaries({"missing": st.booleans(), "import_error": WORDS})


@target(
    said=TORCH_FACTS | NO_TORCH | st.fixed_dictionaries({"failed": WORDS}),
    gpus=st.lists(GPUS, max_size=2),
    answers=NVML_ANSWERS,
    supported=st.none() | st.tuples(NUMBERS, NUMBERS),
    environ=ENVIRONS,
    width=st.integers(-1, 300),
)
def reports(
    said: dict[str, Any],
    gpus: list[Any],
    answers: dict[str, Any],
    supported: tuple[int, int] | None,
    environ: dict[str, str],
    width: int,
) -> None:
    fake = FakeNvml(gpus)
    answering(fake, answers)
    pretences: dict[str, Any] = {
        "collect__torch_facts": lambda: said,
        "collect__ask_driver": lambda: driver.Driver("ok", cuda=supported),
        "visible__driver_order": lambda: None,
    }
    with pretended(environ, **pretences), fake:
        report = devicekit.environment()
        questions = [problem.probe for problem in report.problems]
        allowed = {"torch", *(f"torch: {name}" for name in said.get("errors") or ())}
        assert set(questions) <= allowed, report.problems
        json.dumps(report.to_dict(), allow_nan=False)
        text.as_text(report, width=width, color=bool(width % 2))
        text.as_markdown(report)


@target(
    build=VERSIONS,
    driver_version=VERSIONS,
    supported=VERSIONS,
    arch=words("sm_", "compute_", "90", "a", "f"),
    capability=PAIRS,
    count=NUMBERS | st.floats(),
)
def versions(
    build: str,
    driver_version: str,
    supported: str,
    arch: str,
    capability: tuple[int, int],
    count: float,
) -> None:
    for windows in (False, True):
        rules.build_and_driver(build, driver_version, supported, windows=windows)
    rules.build_and_nvcc(build, driver_version)
    rules.archs_and_gpu([arch, build], supported, "GPU 0")
    archs.arch_runs(arch, capability)
    cuda.supports([arch], capability)
    units.format_bytes(count)


# The command line, and what torch says ...

OPTIONS = ("--json", "--markdown", "--watch", "--count", "--fail-on", "--help", "--version", "--")
ARGUMENTS = st.lists(
    st.sampled_from(["env", "devices", "monitor", *OPTIONS, "never", "nan", "1e30", "-1", "%s"])
    | st.sampled_from(OPTIONS).flatmap(
        lambda option: words("1", "inf").map(f"{option}={{}}".format)
    )
    | SPECS
    | RAW,
    max_size=5,
)


@target(
    arguments=st.tuples(st.sampled_from(["env", "devices", "devices", "monitor"]), ARGUMENTS).map(
        lambda parts: [parts[0], *parts[1]]
    )
    | ARGUMENTS,
    environ=ENVIRONS,
    gpus=st.integers(0, 1),
)
def command_lines(arguments: list[str], environ: dict[str, str], gpus: int) -> None:
    pretences: dict[str, Any] = {
        "collect__torch_facts": lambda: {"failed": "not asked"},
        "visible__driver_order": lambda: None,
    }
    quiet = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    sleep = mock.patch("time.sleep", pass_time)
    # After the others: without an end, `monitor --watch` would never come to one.
    count = ["--count", "2"] if "monitor" in arguments else []
    with pretended(environ, **pretences), FakeNvml(gpus), quiet[0], quiet[1], sleep:
        try:
            code = cli.main([*arguments, *count])
        except SystemExit as ended:
            code = ended.code
    assert code in (0, 1, 2)


def pass_time(seconds: float) -> None:
    """Waits for nothing, but refuses the numbers that `time.sleep` refuses."""
    if not 0 <= seconds < 9e9:
        raise OverflowError(seconds)


SAID = st.sampled_from(
    [
        *("same device", "found at least two devices, ", "found ", "cuda:0", " and ", "cpu", "!"),
        *(
            "expects ",
            "expected ",
            " to be on device",
            "input type ",
            " weight type ",
            " bias type ",
        ),
        *("should be the same", "mismatch between ", "can't convert ", " device type tensor to "),
        *("does not match ", "type of device ", " but got ", " is on ", "cuda:99999", "foo", "\n"),
        *("must be a ", " tensor", "different from other tensors on ", "dense tensor, but got "),
    ]
)
SENTENCES = st.lists(SAID | st.text(max_size=3), max_size=12).map("".join)


@target(sentence=SENTENCES, times=st.sampled_from([1, 1, 1, 3, 1000]))
def errors_of_torch(sentence: str, times: int) -> None:
    said = sentence * times
    messages.is_suspect(said)
    messages.wants_host(said)
    messages.devices_in(said)
    messages.devices_said(said)
    messages.first_line(said)


# Running the targets ...


class TooLong(BaseException):
    """An example takes longer than `LIMIT_S`; no `except Exception` stops it."""


def stop(signum: int, frame: object) -> NoReturn:
    raise TooLong(f"no end within {LIMIT_S:g} s")


def is_ours(error: BaseException) -> bool:
    """Whether the package raised it on purpose."""
    if isinstance(error, DeviceError):
        return True
    if not isinstance(error, ValueError | TypeError):
        return False
    origin = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(origin.filename, origin.lineno or 0)
    return origin.filename.startswith(PACKAGE) and line.strip().startswith("raise ")


def run_block(name: str, number: int, *, small: bool = False) -> tuple[int, BaseException | None]:
    """Runs the examples of one block, up to the first that fails.

    Args:
        name: The target.
        number: The seed.
        small: Whether to look for the smallest example that fails.

    Returns:
        How many examples there were, and what the last one raised.
    """
    function, strategies = TARGETS[name]
    count = 0
    failed: BaseException | None = None

    @seed(number)
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate, Phase.shrink] if small else [Phase.generate],
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(**strategies)
    def example(**values: Any) -> None:
        nonlocal count, failed
        count += 1
        signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
        try:
            function(**values)
        except BaseException as error:
            if is_ours(error):
                return
            if not notes(error):
                error.add_note(f"with {short(values)}")
            failed = error
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    try:
        example()
    # What hypothesis makes of it may be another error: it cannot show what refuses to be shown.
    except BaseException as error:
        failed = failed or error
    return count, failed


def short(values: object) -> str:
    """The values as text, as far as they let themselves be shown."""
    try:
        return SHORT.repr(values)
    except Exception as error:
        return f"values that cannot be shown: {type(error).__name__}"


SHORT = reprlib.Repr()
SHORT.maxdict = SHORT.maxlist = 20
SHORT.maxstring = SHORT.maxother = 200


def describe(error: BaseException) -> dict[str, str]:
    """What a failure is, and the last line of the package that it went through."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)
    ]
    where = f"{frames[-1].filename.removeprefix(PACKAGE)}:{frames[-1].lineno}" if frames else ""
    return {"error": f"{type(error).__name__}: {error}"[:300], "where": where}


def open_things() -> dict[str, int]:
    """What a leak would leave behind."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        children = 1  # or more
    except ChildProcessError:
        children = 0
    files = len(os.listdir("/dev/fd"))
    return {"files": files, "threads": threading.active_count(), "children": children}


def memory_mb() -> float:
    """The memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run_target(name: str, seconds: float, first: int) -> dict[str, Any]:
    """Runs a target until the time is over, and says what it found."""
    signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failures: dict[tuple[str, str], dict[str, Any]] = {}
    start, examples, number = time.perf_counter(), 0, first
    memory: list[float] = []
    before: dict[str, int] = {}
    while time.perf_counter() - start < seconds and len(failures) < MOST_FAILURES:
        count, failed = run_block(name, number)
        examples += count
        if failed is not None:
            failure = describe(failed)
            key = (failure["error"].partition(":")[0], failure["where"])
            failures.setdefault(key, {"seed": number, **failure})
        number += 1
        gc.collect()
        memory.append(memory_mb())
        before = before or open_things()  # after the first block, which loads what is loaded once
    return {
        "examples": examples,
        "seconds": round(time.perf_counter() - start, 1),
        "seeds": [first, number - 1],
        "failures": list(failures.values()),
        "memory_growth_mb": round(max(memory) - memory[0], 1),
        "open_before": before,
        "open_after": open_things(),
    }


def run_apart(name: str, seconds: float, first: int) -> dict[str, Any]:
    """Runs a target in a process of its own, so that no crash or leak reaches the others."""
    command = [sys.executable, __file__, "--target", name]
    command += ["--minutes", str(seconds / 60), "--seed", str(first)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + 300, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failures": [{"error": "it hangs where no signal reaches it"}]}
    if done.returncode != 0:
        end = done.stderr.strip()[-2000:]
        return {"failures": [{"error": f"the process ended with {done.returncode}: {end}"}]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10, help="for all targets together")
    parser.add_argument("--seed", type=int, default=0, help="of the first block of each target")
    parser.add_argument("--target", choices=TARGETS, help="run only this one, here; file nothing")
    parser.add_argument("--again", metavar="TARGET:SEED", help="run one block again, made small")
    args = parser.parse_args()
    if args.again:
        signal.signal(signal.SIGALRM, stop)
        warnings.simplefilter("ignore")
        name, _, number = args.again.partition(":")
        count, failed = run_block(name, int(number), small=True)
        print(count, "examples")
        if failed is not None:
            traceback.print_exception(failed)
        return
    seconds = args.minutes * 60
    if args.target:
        print(json.dumps(run_target(args.target, seconds, args.seed)))
        return
    description = facts("hypothesis", "rich", "nvidia-ml-py")  # now: the commit that is checked
    results: dict[str, Any] = {}
    for name in TARGETS:
        results[name] = run_apart(name, seconds / len(TARGETS), args.seed)
        print(name, json.dumps(results[name]), flush=True)
    summary = {
        "examples": sum(found.get("examples", 0) for found in results.values()),
        "failures": sum(len(found["failures"]) for found in results.values()),
        "limit_seconds": LIMIT_S,
        "targets": results,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({**description, **summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
