"""Asking the driver library in a child process, against libraries made for the purpose."""

import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from devicekit import driver
from devicekit.driver import Driver, Gpu
from devicekit.monitor import visible

_LIBCUDA = """
#include <string.h>
int cuDriverGetVersion(int *v) { *v = 12040; return 0; }
int cuInit(unsigned flags) { return INIT; }
int cuGetErrorName(int code, const char **text) { *text = "CUDA_ERROR_MADE_UP"; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "made up"; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *device, int i) { *device = 40 + i; return 0; }
int cuDeviceGetName(char *name, int n, int device) { strncpy(name, "Made up", n); return 0; }
int cuDeviceGetAttribute(int *value, int what, int device) {
  *value = what == 75 ? 8 : what == 76 ? device - 40 : -1; return 0; }
int NAME_OF_UUID(unsigned char *uuid, int device) {
  for (int i = 0; i < 16; i++) uuid[i] = i;
  uuid[15] = device;
  return 0; }
"""


@pytest.fixture
def libcuda(tmp_path, monkeypatch) -> Callable[..., None]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")

    def build(init: int, uuid: str = "cuDeviceGetUuid_v2") -> None:
        source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
        source.write_text(_LIBCUDA)
        command = [
            compiler,
            "-shared",
            "-fPIC",
            f"-DINIT={init}",
            f"-DNAME_OF_UUID={uuid}",
            "-o",
            library,
            source,
        ]
        subprocess.run(command, check=True)
        monkeypatch.setattr(driver, "_LIBRARY", str(library))

    return build


@pytest.mark.parametrize("uuid", ["cuDeviceGetUuid_v2", "cuDeviceGetUuid"])
def test_the_child_process_asks_the_driver(libcuda, uuid) -> None:
    libcuda(0, uuid)
    assert driver.missing_library() is None
    assert driver.ask_driver() == Driver(
        "ok",
        cuda=(12, 4),
        gpus=(
            Gpu("Made up", "GPU-00010203-0405-0607-0809-0a0b0c0d0e28", (8, 0)),
            Gpu("Made up", "GPU-00010203-0405-0607-0809-0a0b0c0d0e29", (8, 1)),
        ),
        masked=True,
    )


def test_a_gpu_without_a_uuid_can_be_used_all_the_same(libcuda) -> None:
    libcuda(0, "cuSomethingElse")
    assert driver.ask_driver().gpus == (Gpu("Made up", "", (8, 0)), Gpu("Made up", "", (8, 1)))
    assert visible.driver_order() is None


@pytest.mark.parametrize(("code", "state"), [(100, "ok"), (999, "failed")])
def test_the_child_process_reports_errors(libcuda, code: int, state: str) -> None:
    libcuda(code)
    answer = driver.ask_driver()
    assert (answer.state, answer.gpus, answer.cuda) == (state, (), (12, 4))
    assert answer.words == ("" if state == "ok" else "CUDA_ERROR_MADE_UP (999): made up")


def test_the_child_process_fails_without_a_library(monkeypatch) -> None:
    monkeypatch.setattr(driver, "_LIBRARY", "libcuda-that-is-not-there.so.1")
    assert driver.missing_library() is not None
    assert driver.ask_driver().state == "unknown"


@pytest.mark.parametrize("executable", ["", None, "/opt/app/train", "/usr/bin/uwsgi"])
def test_an_application_is_not_started_once_more(monkeypatch, executable) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("started it"))
    answer = driver.ask_driver()
    assert answer.state == "unknown"
    assert "not a Python interpreter" in answer.words


# --- The order of CUDA, which the monitor takes from it.


def test_the_order_is_that_of_the_uuids(libcuda) -> None:
    libcuda(0)
    assert visible.driver_order() == [
        "GPU-00010203-0405-0607-0809-0a0b0c0d0e28",
        "GPU-00010203-0405-0607-0809-0a0b0c0d0e29",
    ]


@pytest.mark.parametrize(("code", "order"), [(100, []), (803, None)])
def test_nothing_visible_is_an_order_and_a_failure_is_none(libcuda, code: int, order) -> None:
    libcuda(code)
    assert visible.driver_order() == order


def test_no_child_process_is_no_order(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert visible.driver_order() is None


@pytest.mark.parametrize("printed", ["", "{}", "[]", '{"code": 0}', "null\n1", "devicekit-driver:"])
def test_what_other_libraries_print_is_no_answer(printed, monkeypatch):
    done = subprocess.CompletedProcess([], 0, printed, "")
    monkeypatch.setattr(driver, "run_python", lambda *args, **options: done)
    assert driver.ask_driver().state == "unknown"


def test_what_is_printed_after_the_answer_does_not_hide_it(monkeypatch):
    done = subprocess.CompletedProcess([], 0, 'devicekit-driver:{"code": 100}\nbye', "")
    monkeypatch.setattr(driver, "run_python", lambda *args, **options: done)
    assert driver.ask_driver() == Driver("ok", masked=True)
