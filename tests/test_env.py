import dataclasses
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from golden_screens import assert_screen
from hypothesis import given
from hypothesis import strategies as st

import devicekit
from devicekit.driver import Driver
from devicekit.env import (
    EnvGpu,
    Environment,
    Nvcc,
    _torch_child,
    collect,
    judge,
    toolkits,
    torch_facts,
)
from devicekit.env.data import Verdict
from devicekit.env.rules import (
    archs_and_gpu,
    build_and_driver,
    build_and_nvcc,
)
from devicekit.env.text import as_markdown, as_text, scrub
from devicekit.monitor import Snapshot, snapshot
from devicekit.testing import FakeNvml

Gpu = FakeNvml.Gpu
GIB = 1024**3


pytestmark = pytest.mark.usefixtures("plain_machine")


# The rules ...


@pytest.mark.parametrize(
    ("build", "driver", "supports", "level", "code"),
    [
        ("12.4", "550.54.14", "12.4", "ok", "driver_supports_build"),
        ("11.8", "550.54.14", "12.4", "ok", "driver_supports_build"),
        ("12.8", "550.54.14", "12.4", "ok", "minor_version_compatibility"),
        ("12.8", "525.60.13", "12.0", "ok", "minor_version_compatibility"),
        ("12.8", "525.60.11", "12.0", "error", "driver_too_old"),
        ("13.0", "575.57.08", "12.9", "error", "driver_too_old"),
        ("13.2", "580.65.06", "13.0", "ok", "minor_version_compatibility"),
        ("12.1", "470.57.02", "11.4", "error", "driver_too_old"),
        ("11.8", "450.80.02", "11.0", "ok", "minor_version_compatibility"),
        ("10.2", "418.39", "10.1", "error", "driver_too_old"),
        ("10.1", "418.39", "10.1", "ok", "driver_supports_build"),
        ("10.2", "440.33.01", None, "ok", "driver_supports_build"),
        ("9.2", "390.46", "9.1", "unknown", "unknown_family"),
        ("14.2", "590.10", "14.0", "unknown", "unknown_family"),
        ("14.0", "590.10", "14.0", "ok", "driver_supports_build"),
        ("12.4", None, None, "unknown", "driver_version_unknown"),
        ("12.4", None, "11.8", "error", "driver_too_old"),
        ("12.4", None, "12.0", "ok", "minor_version_compatibility"),
        ("12.4", "550.54.14", None, "ok", "minor_version_compatibility"),
    ],
)
def test_build_and_driver(build, driver, supports, level, code):
    found = build_and_driver(build, driver, supports)
    assert (found.level, found.code) == (level, code)
    assert found.rule
    assert found.source
    assert bool(found.remedy) or level != "error"


def test_windows_has_its_own_minimum():
    assert build_and_driver("12.4", "527.41", "12.0").level == "ok"
    assert build_and_driver("12.4", "527.41", "12.0", windows=True).level == "error"


def test_r101_the_three_versions_are_told_apart():
    found = build_and_driver("12.8", "470.57.02", "11.4")
    assert "torch for CUDA 12.8 does not fit driver 470.57.02, which supports CUDA up to 11.4" in (
        found.sentence
    )
    assert found.remedy == (
        "Update the NVIDIA driver to 525.60.13 or newer, or install a torch build for CUDA 11."
    )


@pytest.mark.parametrize(
    ("build", "nvcc", "level", "code"),
    [
        ("12.1", "11.8", "error", "major_differs"),
        ("12.4", "12.1", "warning", "minor_differs"),
        ("13.0", "13.0", "ok", "same_version"),
        ("12.1", None, "ok", "nvcc_not_found"),
        (None, "13.0", "ok", "nvcc_not_used"),
        (None, None, "ok", "nvcc_not_found"),
    ],
)
def test_r100_build_and_nvcc(build, nvcc, level, code):
    found = build_and_nvcc(build, nvcc)
    assert (found.level, found.code) == (level, code)
    assert "nvcc" in found.sentence


@given(st.text(max_size=12), st.text(max_size=12) | st.none(), st.text(max_size=8) | st.none())
def test_build_and_driver_never_fails(build, driver, supports):
    assert build_and_driver(build, driver, supports).level in ("ok", "error", "unknown")


@pytest.mark.parametrize("text", ["git", "", "9" * 5000, f"12.{'9' * 5000}"])
def test_versions_that_are_none_are_judged_too(text):
    assert build_and_driver(text, "550.54.14", "12.4").level in ("ok", "error", "unknown")
    assert build_and_driver("12.4", text, text).level in ("ok", "error", "unknown")
    assert build_and_nvcc("12.4", text).level in ("warning", "error")
    assert archs_and_gpu([f"sm_{text}"], text, "GPU 0").level == "unknown"


@pytest.mark.parametrize(
    ("archs", "capability", "level", "code"),
    [
        (["sm_75", "sm_80", "sm_86", "sm_90"], "8.9", "ok", "has_kernels"),
        (["sm_75", "sm_80", "sm_90"], "7.0", "error", "no_kernels"),
        (["sm_80", "compute_90"], "12.0", "ok", "has_ptx"),
        ([], "9.0", "unknown", "unknown_architecture"),
        (["sm_90"], None, "unknown", "unknown_architecture"),
        (["sm_1000000b"], "9.0", "unknown", "unknown_architecture"),
    ],
    ids=["Ada", "Volta gone", "by PTX", "no list", "no capability", "new notation"],
)
def test_archs_and_gpu(archs, capability, level, code):
    found = archs_and_gpu(archs, capability, "GPU 0")
    assert (found.level, found.code) == (level, code)


# The verdicts ...


def cuda_report(**changes):
    facts = {
        "torch": "2.9.0+cu128",
        "build": "cuda",
        "build_cuda": "12.8",
        "build_archs": ("sm_80", "sm_90"),
        "driver": "550.54.14",
        "driver_max_cuda": "12.4",
        "cuda_available": True,
        "gpus": (gpu_of(),),
        **changes,
    }
    return Environment(**facts)


def gpu_of(**changes):
    facts = {
        "nvml_index": 0,
        "cuda_index": 0,
        "uuid": "GPU-0a0a0a0a-0000",
        "name": "NVIDIA H100",
        "compute_capability": "9.0",
        "memory_total_bytes": 80 * GIB,
        "kernel": "ok",
        **changes,
    }
    return EnvGpu(**facts)


def codes(report, torch=None, shot=None):
    found = judge.verdicts(report, torch or {}, shot or Snapshot())
    return {verdict.code: verdict.level for verdict in found}


def test_all_is_well():
    assert codes(cuda_report()) == {
        "imports": "ok",
        "minor_version_compatibility": "ok",
        "has_kernels": "ok",
        "kernels_ran": "ok",
        "nvcc_not_found": "ok",
    }


def test_a_kernel_that_ran_overrules_the_tables():
    report = cuda_report(
        build_cuda="13.0", build_archs=("sm_100",), driver="550.54.14", driver_max_cuda="12.4"
    )
    found = judge.verdicts(report, {}, Snapshot())
    assert {verdict.level for verdict in found} == {"ok"}
    assert [verdict.code for verdict in found].count("a_kernel_ran") == 2


def test_without_a_kernel_the_tables_count():
    silent = (gpu_of(kernel=None),)
    report = cuda_report(
        build_cuda="13.0", build_archs=("sm_100",), gpus=silent, cuda_available=False
    )
    found = codes(report, {"not_available": "RuntimeError: The NVIDIA driver is too old"})
    assert found["driver_too_old"] == found["no_kernels"] == found["cuda_not_available"] == "error"


@pytest.mark.parametrize(
    ("kernel", "level"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB", "warning"),
        ("AcceleratorError: CUDA-capable device(s) is/are busy or unavailable", "warning"),
        ("RuntimeError: no kernel image is available for execution on the device", "error"),
        ("it computed 3.0 instead of 4.0", "error"),
    ],
)
def test_a_kernel_that_failed(kernel, level):
    assert codes(cuda_report(gpus=(gpu_of(kernel=kernel),)))["kernel_failed"] == level


def test_a_hidden_gpu_that_does_not_fit_is_no_error():
    old = gpu_of(nvml_index=1, cuda_index=None, compute_capability="7.0", kernel=None)
    found = judge.verdicts(cuda_report(gpus=(gpu_of(), old)), {}, Snapshot())
    assert [v.level for v in found if v.pair == "build and GPU"] == ["ok", "warning"]


def test_hidden_gpus():
    report = cuda_report(
        gpus=(gpu_of(kernel=None, cuda_index=None),),
        cuda_available=False,
        variables={"CUDA_VISIBLE_DEVICES": ""},
    )
    assert codes(report)["hidden"] == "warning"


@pytest.mark.parametrize(("on_the_bus", "level"), [(True, "error"), (False, "warning")])
def test_no_driver_is_an_error_only_where_a_gpu_is(on_the_bus, level):
    report = cuda_report(
        driver=None, driver_max_cuda=None, gpus=(), cuda_available=False, gpu_in_pci=on_the_bus
    )
    found = codes(report)
    assert found == {"imports": "ok", "no_driver": level, "nvcc_not_found": "ok"}


def test_a_cpu_build_beside_a_gpu():
    untried = (gpu_of(kernel=None),)
    report = cuda_report(build="cpu", build_cuda=None, torch="2.9.0+cpu", gpus=untried)
    assert codes(report) == {
        "imports": "ok",
        "build_without_cuda": "warning",
        "nvcc_not_found": "ok",
    }


def test_a_mismatch_of_library_and_kernel_module():
    report = cuda_report(gpus=(), cuda_available=False)
    with FakeNvml(init_error="LibRmVersionMismatch"):
        found = codes(report, {"not_available": "x"}, snapshot())
    assert found["version_mismatch"] == "error"


def test_the_wrong_binding_is_told():
    with FakeNvml(binding="foreign"):
        assert codes(cuda_report(), shot=snapshot())["wrong_binding"] == "warning"


@pytest.mark.parametrize(
    ("devices", "code", "level"),
    [
        ([{"index": 0, "arch": "gfx90a:sramecc+", "kernel": "ok"}], "kernels_ran", "ok"),
        ([{"index": 0, "arch": "gfx1030", "kernel": "RuntimeError: x"}], "no_kernels", "error"),
        ([{"index": 0, "arch": "gfx90a", "kernel": "RuntimeError: x"}], "kernel_failed", "error"),
        ([], "no_gpu", "warning"),
    ],
)
def test_rocm_skips_nvidias_rules(devices, code, level):
    report = cuda_report(
        build="rocm",
        build_cuda=None,
        build_hip="6.4",
        build_archs=("gfx90a", "gfx942"),
        driver=None,
        driver_max_cuda=None,
        nvcc="11.8",
        gpus=(),
    )
    assert codes(report, {"devices": devices}) == {"imports": "ok", code: level}


def test_cuda_home_without_nvcc(tmp_path):
    other = Nvcc(path="/x/nvcc", version="12.8", release="12.8.93", found_by="PATH", used=False)
    report = cuda_report(variables={"CUDA_HOME": str(tmp_path)}, nvccs=(other,))
    (found,) = (v for v in judge.verdicts(report, {}, Snapshot()) if v.code.startswith("cuda_home"))
    assert found.level == "warning"
    assert "nvcc 12.8 is here" in found.remedy
    assert "has no nvcc" in found.sentence


def test_the_worst_level():
    def levels(*names):
        return Environment(
            verdicts=tuple(
                Verdict(pair="", level=name, code="", sentence="", rule="", source="")
                for name in names
            )
        )

    assert levels("ok", "unknown").worst() == "ok"
    assert levels("ok", "warning", "unknown").worst() == "warning"
    assert levels("error", "warning").worst() == "error"


# Compilers ...


@pytest.fixture
def nvcc_at(tmp_path):
    """Put a compiler that prints a version into a folder."""
    if sys.platform == "win32":
        pytest.skip("the stand-in is a shell script")

    def install(folder, says="Cuda compilation tools, release 11.8, V11.8.89"):
        path = tmp_path / folder / "bin" / "nvcc"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{says if says.startswith('exec') else f'echo {says!r}'}\n")
        path.chmod(0o755)
        return path

    return install


@pytest.fixture
def no_installed_toolkit(tmp_path, monkeypatch):
    monkeypatch.setattr(toolkits, "_FOLDER", tmp_path / "local")


def test_r100_each_nvcc_with_path_and_how_it_was_found(nvcc_at, tmp_path, no_installed_toolkit):
    named, on_path = nvcc_at("home"), nvcc_at("path", "release 12.4, V12.4.131")
    installed = nvcc_at("local/cuda-13.0", "Cuda compilation tools, release 13.0, V13.0.88")
    environ = {
        "CUDA_HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join([str(on_path.parent), "/usr/bin", "/bin"]),
    }
    found = toolkits.find_nvccs(environ)
    assert [(n.path, n.version, n.release, n.found_by, n.used) for n in found] == [
        (str(named), "11.8", "11.8.89", "CUDA_HOME", True),
        (str(on_path), "12.4", "12.4.131", "PATH", False),
        (str(installed), "13.0", "13.0.88", str(tmp_path / "local"), False),
    ]
    assert [n.used for n in toolkits.find_nvccs({**environ, "CUDA_HOME": ""})] == [True, False]


@pytest.mark.usefixtures("no_installed_toolkit")
@pytest.mark.parametrize(
    ("says", "reason"),
    [("exec false", "no_version_in_output"), ("no numbers", "no_version_in_output")],
)
def test_an_nvcc_that_gives_no_version(nvcc_at, says, reason):
    path = nvcc_at("home", says)
    (found,) = toolkits.find_nvccs({"CUDA_HOME": str(path.parent.parent)})
    assert (found.version, found.reasons["version"], found.used) == (None, reason, True)


@pytest.mark.usefixtures("no_installed_toolkit")
@pytest.mark.parametrize("bad", ["loop", "x" * 300, "file"])
def test_a_bad_place_hides_no_other_nvcc(nvcc_at, tmp_path, bad):
    path = nvcc_at("home")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    on_path = os.pathsep.join([str(tmp_path / bad), str(path.parent)])
    (found,) = toolkits.find_nvccs({"CUDA_HOME": str(tmp_path / bad), "PATH": on_path})
    assert (found.path, found.used) == (str(path), False)


@pytest.mark.usefixtures("no_installed_toolkit")
def test_an_nvcc_that_hangs(nvcc_at, monkeypatch):
    monkeypatch.setattr(toolkits, "TIMEOUT_S", 0.2)
    path = nvcc_at("home", "exec sleep 60")
    (found,) = toolkits.find_nvccs({"CUDA_HOME": str(path.parent.parent)})
    assert found.reasons["version"] == "timeout"


@pytest.mark.usefixtures("no_installed_toolkit")
def test_an_nvcc_that_cannot_be_run(nvcc_at):
    path = nvcc_at("home")
    path.chmod(0o644)
    (found,) = toolkits.find_nvccs({"CUDA_HOME": str(path.parent.parent)})
    assert found.reasons["version"] == "does_not_run"


@pytest.mark.usefixtures("no_installed_toolkit")
def test_no_nvcc_at_all():
    assert toolkits.find_nvccs({"PATH": ""}) == ()
    assert toolkits.find_nvccs({}) == ()


def test_the_same_nvcc_as_torch_uses(monkeypatch):
    extension = pytest.importorskip("torch.utils.cpp_extension")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    home = toolkits.cuda_home(os.environ)
    assert (str(home) if home else None) == extension._find_cuda_home()


# Asking torch ...


@pytest.fixture
def torch_that(tmp_path, monkeypatch):
    """Put a package named torch in front of the real one."""

    def install(content):
        (tmp_path / "torch.py").write_text(textwrap.dedent(content))
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        return torch_facts.torch_facts()

    return install


BROKEN = {
    "a library is missing": (
        "raise ImportError('libcudart.so.12: cannot open shared object file')",
        "ImportError: libcudart.so.12: cannot open shared object file",
    ),
    "a dependency is missing": (
        "import a_module_that_is_not_there",
        "ModuleNotFoundError: No module named 'a_module_that_is_not_there'",
    ),
    "any error": ("1 / 0", "ZeroDivisionError: division by zero"),
    "it kills the process": (
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "the process was killed by SIGSEGV",
    ),
    "it leaves": ("import os; os._exit(3)", "the process ended with status 3"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_torch_that_does_not_import(torch_that, case):
    content, words = BROKEN[case]
    found = torch_that(content)
    assert not found["missing"]
    assert found["import_error"].startswith(words)


def test_a_torch_that_warns(torch_that, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    found = torch_that("import warnings; warnings.warn('old'); raise ImportError('reached')")
    assert found["import_error"] == "ImportError: reached"


def test_a_torch_that_hangs(torch_that, monkeypatch):
    monkeypatch.setattr(torch_facts, "TIMEOUT_S", 1.0)
    assert "did not answer within 1 s" in torch_that("import time; time.sleep(60)")["failed"]


def test_no_torch(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setitem(sys.modules, "torch", None)
    found = torch_facts.torch_facts()
    assert found["import_error"]


def test_no_interpreter_to_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    found = devicekit.environment()
    assert (found.checked, found.build) == (False, None)
    assert "interpreter" in found.problems[0].sentence


def test_torch_about_itself():
    torch = pytest.importorskip("torch")
    found = json.loads(json.dumps(_torch_child.facts()))
    assert (found["version"], found["cuda"]) == (torch.__version__, torch.version.cuda)
    assert bool(found["archs"]) == (torch.version.cuda is not None)
    assert found["errors"] == {}


@pytest.mark.usefixtures("simulated_cuda")
def test_a_kernel_on_each_device(monkeypatch):
    """On the simulated CUDA, whose tensors hold real values."""
    torch = pytest.importorskip("torch")
    found = [_torch_child._device(torch, index) for index in range(3)]
    monkeypatch.setattr(torch, "ones", lambda *args, **kwargs: torch.zeros(2))
    wrong = _torch_child._device(torch, 0)
    assert [each["kernel"] for each in found[:2]] == ["ok", "ok"]
    assert found[0]["capability"] == "8.0"
    assert "Error" in found[2]["kernel"]
    assert wrong["kernel"] == "it computed 2.0 instead of 4.0"


def test_why_cuda_does_not_start(monkeypatch):
    torch = pytest.importorskip("torch")

    def fail():
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "init", fail)
    assert _torch_child._why_not(torch) == "RuntimeError: Found no NVIDIA driver on your system."


# The report ...

FACTS = {
    "version": "2.9.0+cu128",
    "cuda": "12.8",
    "hip": None,
    "xpu": None,
    "archs": ["sm_75", "sm_80", "sm_90"],
    "cudnn": 91002,
    "nccl": [2, 27, 3],
    "available": True,
    "devices": [],
    "errors": {},
}
DEVICE = {
    "index": 0,
    "name": "NVIDIA H100",
    "capability": "9.0",
    "uuid": "00000001-0000-4000-8000-000000000000",
    "arch": None,
    "memory": 79 * GIB,
    "kernel": "ok",
}


NVCCS = (
    Nvcc(
        path="/home/ada/cuda/bin/nvcc",
        version="12.1",
        release="12.1.105",
        found_by="CUDA_HOME",
        used=True,
    ),
    Nvcc(path="/usr/bin/nvcc", version="11.8", release="11.8.89", found_by="PATH", used=False),
)


@pytest.fixture
def report_of(monkeypatch):
    """Make the report of a machine: what torch says, and the GPUs."""

    def make(torch, *gpus, nvccs=(), **options):
        monkeypatch.setattr(collect, "torch_facts", lambda: torch)
        monkeypatch.setattr(collect, "ask_driver", lambda: Driver("unknown"))
        monkeypatch.setattr(collect, "find_nvccs", lambda environ: tuple(nvccs))
        monkeypatch.setattr(collect, "cuda_home", lambda environ: None)
        monkeypatch.setattr(collect, "_gpu_in_pci", lambda folder: bool(gpus))
        monkeypatch.setattr(collect, "_packages", lambda: {"torch": "2.9.0", "numpy": "2.1.0"})
        monkeypatch.setattr(collect, "_kernel_module_version", lambda proc: None)
        monkeypatch.setattr("platform.python_version", lambda: "3.12.1")
        monkeypatch.setattr("platform.platform", lambda: "Linux-6.1-x86_64")
        options = options or ({} if gpus else {"init_error": "LibraryNotFound"})
        with FakeNvml(list(gpus), **options):
            return devicekit.environment()

    return make


def test_r101_four_fields_for_four_versions(report_of):
    found = report_of(FACTS, Gpu(), nvccs=NVCCS)
    assert (found.driver, found.driver_max_cuda, found.build_cuda, found.nvcc) == (
        "550.54.14",
        "12.4",
        "12.8",
        "12.1",
    )
    assert (found.cudnn, found.nccl) == ("9.10.2", "2.27.3")
    assert "nvidia-smi's CUDA Version" in str(found)


def test_gpus_of_nvml_and_torch_are_joined_by_uuid(report_of):
    found = report_of({**FACTS, "devices": [DEVICE]}, Gpu(name="a"), Gpu(name="b"))
    first, second = found.gpus
    assert (first.name, first.kernel, first.reasons["kernel"]) == ("a", None, "not_visible")
    assert (second.name, second.cuda_index, second.kernel) == ("b", 0, "ok")


def test_gpus_that_only_torch_knows(report_of):
    found = report_of({**FACTS, "devices": [DEVICE]})
    (gpu,) = found.gpus
    assert (gpu.nvml_index, gpu.cuda_index, gpu.name) == (None, 0, "NVIDIA H100")


@pytest.mark.parametrize(("number", "text"), [(8902, "8.9.2"), (91002, "9.10.2"), (None, None)])
def test_cudnns_number(number, text):
    assert collect._cudnn(number) == text


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22", "550.54.14"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Rel", "580.65.06"),
        ("nothing", None),
    ],
)
def test_the_kernel_modules_words(tmp_path, line, found):
    folder = tmp_path / "driver" / "nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(line)
    assert collect._kernel_module_version(tmp_path) == found


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        ([("0x8086", "0x030000")], False),
        ([("0x8086", "0x030000"), ("0x10de", "0x030200")], True),
        ([("0x10de", "0x040300")], False),  # the sound of a GPU
        ([], False),
    ],
)
def test_gpus_on_the_bus(tmp_path, devices, found):
    for number, (vendor, kind) in enumerate(devices):
        device = tmp_path / f"0000:0{number}:00.0"
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    assert collect._gpu_in_pci(tmp_path) is found
    assert collect._gpu_in_pci(tmp_path / "none") is None


@pytest.mark.parametrize("broken", ["torch_facts", "snapshot", "find_nvccs", "cuda_home", "_gpus",
                                    "_packages", "_about_driver", "_gpu_in_pci"])  # fmt: skip
def test_r103_no_broken_probe_breaks_the_report(report_of, monkeypatch, broken):
    def fail(*args):
        raise OSError("odd machine")

    report_of(FACTS, Gpu())
    monkeypatch.setattr(collect, broken, fail)
    with FakeNvml([Gpu()]):
        found = devicekit.environment()
    assert any("odd machine" in problem.sentence for problem in found.problems)
    assert json.dumps(found.to_dict())
    assert str(found)
    assert as_markdown(found)


def test_r103_with_an_empty_path(monkeypatch):
    monkeypatch.setattr(collect, "torch_facts", lambda: FACTS)
    monkeypatch.setenv("PATH", "")
    assert devicekit.environment().problems == ()


@pytest.mark.slow
def test_this_machine_itself():
    found = devicekit.environment()
    torch = pytest.importorskip("torch")
    assert found.torch == torch.__version__
    assert found.build_cuda == torch.version.cuda
    assert found.problems == ()
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    for key, value in found.to_dict().items():
        assert value is not None or found.to_dict()[f"{key}_reason"]


@pytest.mark.slow
def test_the_report_imports_no_torch_here():
    program = """
        import sys, devicekit
        report = devicekit.environment()
        assert "torch" not in sys.modules
        assert report.build is not None, report.problems
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


# Screens ...


@pytest.fixture
def screens(report_of, monkeypatch):
    def make(name):
        if name == "cpu":
            facts = {**FACTS, "version": "2.9.0+cpu", "cuda": None, "archs": [], "nccl": None}
            used = dataclasses.replace(NVCCS[1], used=True)
            return report_of({**facts, "available": False}, nvccs=[used])
        if name == "no_torch":
            return report_of({"missing": True, "import_error": "No module named 'torch'"})
        if name == "broken_torch":
            error = "ImportError: /home/ada/.venv/lib/libtorch_cuda.so: undefined symbol: ncclFoo"
            return report_of({"missing": False, "import_error": error})
        if name == "no_driver":
            return report_of({**FACTS, "available": False, "not_available": "no driver"})
        monkeypatch.setenv("CUDA_HOME", "/home/ada/cuda")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        return report_of(
            {**FACTS, "devices": [DEVICE]},
            Gpu(name="NVIDIA V100", capability=(7, 0)),
            Gpu(),
            nvccs=NVCCS,
        )

    return make


SCREENS = ["cpu", "no_torch", "broken_torch", "no_driver", "two_gpus"]


@pytest.mark.parametrize("width", [100, 60])
@pytest.mark.parametrize("name", SCREENS)
def test_the_screen(screens, name, width):
    screen = as_text(screens(name), width=width)
    assert "\x1b" not in screen
    assert max(map(len, screen.splitlines())) <= width
    assert_screen(f"env_{name}_{width}", screen)


def test_the_screen_in_colour(screens):
    screen = as_text(screens("two_gpus"), width=100, color=True)
    assert "\x1b[33mwarning\x1b[0m" in screen
    assert_screen("env_two_gpus_100_color", screen)


@pytest.mark.parametrize("name", SCREENS)
def test_the_markdown_has_no_paths_names_or_serial_numbers(screens, name):
    text = as_markdown(screens(name))
    assert_screen(f"env_{name}_markdown", text)
    for private in ("/home", "ada", "/usr", "GPU-0"):
        assert private not in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/ada/x.so: undefined symbol", ".../x.so: undefined symbol"),
        ("a 'C:\\Users\\ada\\torch\\lib.dll' b", "a '.../lib.dll' b"),
        ("GPU-12345678-1234-1234,1", "GPU-...,1"),
        ("read /proc/version", "read .../version"),
        ("either and/or, 3/4, 100W / 700W", "either and/or, 3/4, 100W / 700W"),
        ("https://pytorch.org/get-started/locally", "https://pytorch.org/get-started/locally"),
    ],
)
def test_scrub(text, clean):
    assert scrub(text) == clean


def test_scrub_hides_home_and_user(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "lovelace")
    monkeypatch.setenv("HOME", "/data/lovelace")
    text = scrub("cannot open /data/lovelace/env/lib.so as lovelace")
    assert text == "cannot open .../lib.so as user"


@pytest.mark.parametrize("home", ["~", "~nobody-of-this-name", "", "."])
def test_scrub_without_a_home(monkeypatch, home):
    monkeypatch.setenv("HOME", home)
    assert scrub("cannot open /data/lib.so") == "cannot open .../lib.so"


@given(st.text())
def test_scrub_never_fails(text):
    assert isinstance(scrub(text), str)


# Other environments; each variable names a Python interpreter ...


def other(variable):
    """Return the report as JSON of the interpreter that a variable names."""
    interpreter = os.environ.get(variable)
    if not interpreter:
        pytest.skip(f"{variable} does not name a Python interpreter")
    done = subprocess.run(
        [interpreter, "-m", "devicekit", "env", "--json"],
        capture_output=True,
        text=True,
        cwd=Path(devicekit.__file__).parents[1],
    )
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_a_python_without_torch():
    code, found, notes = other("DEVICEKIT_TEST_PYTHON_WITHOUT_TORCH")
    assert (code, found["torch"], found["build_reason"]) == (2, None, "not_installed")
    assert [verdict["code"] for verdict in found["verdicts"]] == ["torch_missing"]
    assert notes == ""


@pytest.mark.slow
def test_a_cuda_build():
    code, found, notes = other("DEVICEKIT_TEST_PYTHON_WITH_CUDA_BUILD")
    assert found["build"] == "cuda"
    assert found["build_archs"]
    assert found["cudnn"]
    assert notes == ""
    if found["driver"] is None and not found["gpu_in_pci"]:
        levels = {verdict["code"]: verdict["level"] for verdict in found["verdicts"]}
        assert (code, levels["no_driver"]) == (0, "warning")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on PATH")
def test_r100_the_nvcc_of_this_machine():
    path = shutil.which("nvcc")
    assert path in [nvcc.path for nvcc in toolkits.find_nvccs(os.environ)]
