"""What is in the wheel and the source archive, and what the public names promise."""

import inspect
import tarfile
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import devicekit
from devicekit import testing

ROOT = Path(__file__).parents[1]


# --- The archives.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the wheel and their contents."""
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    assert Path(path).name.endswith("-py3-none-any.whl")
    assert Path(path).stat().st_size < 600_000
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def of_dist_info(wheel: dict[str, bytes], name: str) -> str:
    (found,) = (path for path in wheel if path.endswith(f".dist-info/{name}"))
    return wheel[found].decode()


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Message:
    return Parser().parsestr(of_dist_info(wheel, "METADATA"))


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "devicekit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in wheel if ".dist-info/" not in path} == sources
    assert {Path(path).suffix for path in sources} == {".py", ".typed"}
    assert {"devicekit/py.typed", "devicekit/testing/plugin/__init__.py"} <= sources
    assert not [path for path in sources if Path(path).name.startswith(("test_", "conftest"))]
    assert max(len(wheel[path]) for path in sources) < 50_000


@pytest.mark.slow
def test_the_wheel_declares_its_command_its_plugin_and_its_licence(wheel: dict[str, bytes]) -> None:
    assert of_dist_info(wheel, "entry_points.txt").split() == [
        *("[console_scripts]", "devicekit", "=", "devicekit.cli:main"),
        *("[pytest11]", "devicekit", "=", "devicekit.testing.plugin"),
    ]
    assert of_dist_info(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_the_metadata(metadata: Message) -> None:
    assert metadata["Name"] == "torch-devicekit"
    assert metadata["Version"] == devicekit.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == (ROOT / "README.md").read_text()
    extras = metadata.get_all("Provides-Extra")
    assert extras is not None
    assert set(extras) == {"docs", "examples", "monitor", "test"}


@pytest.mark.slow
def test_without_extras_only_torch_is_required(metadata: Message) -> None:
    required = metadata.get_all("Requires-Dist")
    assert required is not None
    always = [line for line in required if "extra ==" not in line]
    assert always == ["torch>=2.6", "typing-extensions>=4.10"]


@pytest.mark.slow
def test_the_source_archive_can_run_its_tests(tmp_path: Path) -> None:
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    # The tests read the README and the docs, and the root's conftest.py runs their examples.
    assert {"README.md", "LICENSE", "pyproject.toml", "conftest.py", "constraints.txt"} <= held
    needed = {
        file.relative_to(ROOT).as_posix()
        for folder in ("devicekit", "tests", "docs")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".md", ".toml"}
        and not any(part in file.parts for part in ("_build", "__pycache__"))
    }
    needed |= {file.relative_to(ROOT).as_posix() for file in (ROOT / "tests/golden").iterdir()}
    assert needed <= held


# --- The public names. A change here is a change for users: it belongs in the changelog.


def test_the_public_names() -> None:
    assert devicekit.__all__ == [
        "__version__",
        "DataLoader",
        "Device",
        "DeviceError",
        "DeviceFallbackWarning",
        "DeviceMismatchError",
        "DeviceSpecError",
        "DeviceUnavailableError",
        "MoveError",
        "PinMemoryError",
        "WorkerDeviceError",
        "audit",
        "environment",
        "explain",
        "find_tensors",
        "guard",
        "pack",
        "pin_memory",
        "prefetch_to_device",
        "same_device",
        "snapshot",
        "to_device",
        "unpack",
    ]


def test_the_public_names_for_tests() -> None:
    assert testing.__all__ == [
        "FakeNvml",
        "Simulation",
        "assert_on",
        "assert_same",
        "batches",
        "simulate",
    ]


def signature(function: Callable[..., Any]) -> str:
    """The parameters and their defaults; `tests/typing` holds what the types must be."""
    found = inspect.signature(function)
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


SIGNATURES = {
    "DataLoader": (
        "(dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0, "
        "collate_fn=None, pin_memory='auto', drop_last=False, timeout=0, worker_init_fn=None, "
        "multiprocessing_context=None, generator=None, *, prefetch_factor=None, "
        "persistent_workers=False, pin_memory_device='', in_order=True, device='auto', "
        "pack='auto', prefetch=1, on_device_data='adapt')"
    ),
    "Device": "(spec='auto', *, fallback='cpu')",
    "Device.available": "()",
    "Device.of": "(x)",
    "DeviceUnavailableError": "(message, requested='', reason='')",
    "audit": "(model, optimizer=None, *, device=None)",
    "environment": "()",
    "explain": "(exc)",
    "find_tensors": "(data, *, name='data')",
    "guard": "(target=None, /, *, device=None, move=False, allow=())",
    "guard.remove": "(module)",
    "pack": "(data)",
    "pin_memory": "(data)",
    "prefetch_to_device": "(iterable, device='auto', depth=1)",
    "same_device": "(*objects)",
    "snapshot": "()",
    "to_device": ("(data, device, *, dtype=None, non_blocking='auto', strict=False, skip=())"),
    "to_device.register": "(cls, flatten, unflatten)",
    "unpack": "(packed)",
    "testing.FakeNvml": (
        "(gpus=1, *, driver='550.54.14', cuda_driver=12040, init_error=None, missing=(), "
        "binding='nvidia-ml-py')"
    ),
    "testing.assert_on": "(device, data)",
    "testing.assert_same": "(actual, expected)",
    "testing.batches": "(*, cycles=False)",
    "testing.simulate": (
        "(name='sim', *, count=2, float64=True, memory=None, async_copies=False, allow_real=False)"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures(name: str) -> None:
    assert signature(attrgetter(name)(devicekit)) == SIGNATURES[name]


def test_what_a_device_says() -> None:
    named = {name for name in vars(devicekit.Device) if name[0] != "_"}
    assert named == {
        *("available", "of"),
        *("index", "is_accelerator", "name", "reason", "requested", "torch", "type", "why"),
    }
