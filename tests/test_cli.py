import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from golden_screens import assert_screen

import devicekit
from devicekit import cli
from devicekit.cli import output
from devicekit.env import Environment
from devicekit.env.data import Verdict
from devicekit.testing import FakeNvml

ROOT = Path(devicekit.__file__).parents[1]
Gpu, Process = FakeNvml.Gpu, FakeNvml.Process


@pytest.fixture(autouse=True)
def _plain_terminal(plain_machine, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys, *arguments):
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


# Arguments ...


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["env", "--json", "--markdown"],
        ["env", "--fail-on", "sometimes"],
        ["monitor", "--watch", "0.1"],
        ["monitor", "--watch", "nan"],
        ["monitor", "--watch", "inf"],
        ["monitor", "--watch", "soon"],
        ["monitor", "--count", "0"],
    ],
)
def test_wrong_arguments_are_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--watch", "soon"], "'soon' is not a number"),
        (["--watch", "0.1"], "'0.1' is not a number of seconds from 0.25 to 86400"),
        (["--watch", "1e30"], "'1e30' is not a number of seconds from 0.25 to 86400"),
        (["--watch", "nan"], "'nan' is not a number of seconds from 0.25 to 86400"),
        (["--count", "many"], "'many' is not a number"),
        (["--count", "0"], "'0' is not a whole number of at least 1"),
        (["--count", "1.5"], "'1.5' is not a whole number of at least 1"),
        (["--count", "inf"], "'inf' is not a whole number of at least 1"),
    ],
)
def test_wrong_numbers_are_explained(arguments, words, capsys):
    with pytest.raises(SystemExit):
        cli.main(["monitor", *arguments])
    assert capsys.readouterr().err.endswith(f"{words}\n")


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"devicekit {devicekit.__version__}\n"


@pytest.mark.parametrize("command", ["", "env", "devices", "monitor"])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"] if command else ["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: devicekit {command}".rstrip())


# env ...


def report(level, build="cuda"):
    verdict = Verdict(
        pair="a and b", level=level, code="c", sentence="they met", rule="r", source="s"
    )
    return Environment(build=build, build_cuda="12.4", torch="2.9.0", verdicts=(verdict,))


@pytest.mark.parametrize(
    ("level", "fail_on", "code"),
    [
        ("ok", "error", 0),
        ("unknown", "warning", 0),
        ("warning", "error", 0),
        ("warning", "warning", 1),
        ("error", "error", 1),
        ("error", "warning", 1),
        ("error", "never", 0),
    ],
)
def test_env_exit_codes(monkeypatch, capsys, level, fail_on, code):
    monkeypatch.setattr("devicekit.env.environment", lambda: report(level))
    found, out, err = run(capsys, "env", "--fail-on", fail_on)
    assert (found, err) == (code, "")
    assert "a and b: they met." in out


@pytest.mark.parametrize("fail_on", ["error", "never"])
def test_env_that_could_not_ask_torch_is_2(monkeypatch, capsys, fail_on):
    monkeypatch.setattr("devicekit.env.environment", lambda: report("error", build=None))
    assert run(capsys, "env", "--fail-on", fail_on)[0] == 2


def test_env_forms(monkeypatch, capsys):
    monkeypatch.setattr("devicekit.env.environment", lambda: report("ok"))
    found = json.loads(run(capsys, "env", "--json")[1])
    assert (found["schema_version"], found["build_cuda"]) == (1, "12.4")
    assert run(capsys, "env", "--markdown")[1].startswith("| what | value |")


# devices ...


def test_devices_lists_all(capsys):
    pytest.importorskip("torch")
    code, out, err = run(capsys, "devices")
    assert (code, err) == (0, "")
    assert "cpu" in [line.split()[0] for line in out.splitlines()]


def test_devices_as_json(capsys):
    pytest.importorskip("torch")
    found = json.loads(run(capsys, "devices", "--json")[1])
    assert found["schema_version"] == 1
    assert "cpu" in [each["device"] for each in found["devices"]]
    for backend in found["backends"]:
        assert backend["count"] or (backend["reason"] and backend["sentence"])


@pytest.mark.usefixtures("simulated_accelerator")
def test_devices_names_a_simulated_accelerator(capsys):
    code, out, _ = run(capsys, "devices", "--json")
    assert code == 0
    assert {"sim:0", "sim:1", "cpu"} <= {each["device"] for each in json.loads(out)["devices"]}


@pytest.mark.usefixtures("simulated_accelerator")
@pytest.mark.parametrize(
    ("specs", "code", "devices"),
    [
        (["cpu"], 0, ["cpu"]),
        (["auto", "sim:1"], 0, ["sim:0", "sim:1"]),
        (["sim:7"], 1, [None]),
        (["cpu", "xpu"], 1, ["cpu", None]),
        (["cdua"], 2, [None]),
        (["xpu", "cdua", "cpu"], 2, [None, None, "cpu"]),
    ],
)
def test_devices_asked_for(capsys, specs, code, devices):
    found, out, err = run(capsys, "devices", "--json", *specs)
    rows = json.loads(out)["requested"]
    assert (found, err) == (code, "")
    assert [row["device"] for row in rows] == devices
    for row in rows:
        assert row["device"] or (row["device_reason"] and row["sentence"])


@pytest.mark.usefixtures("simulated_accelerator")
def test_devices_as_text(capsys):
    code, out, _ = run(capsys, "devices", "sim", "cdua")
    assert code == 2
    assert out.splitlines()[0].startswith("sim   sim:0")
    assert "did you mean 'cuda'" in out


def test_devices_as_markdown(capsys):
    pytest.importorskip("torch")
    assert run(capsys, "devices", "--markdown", "cpu")[1] == "- `cpu`: cpu\n"


@pytest.mark.parametrize("columns", [60, 100])
def test_the_screen_of_devices(monkeypatch, capsys, columns):
    probe = pytest.importorskip("devicekit.probe")
    answers = {
        "cuda": probe.Probe(
            "cuda",
            0,
            "driver_too_old",
            "the NVIDIA driver 470.57.02 supports CUDA up to 11.4, and torch 2.9.0+cu128 was built "
            "for CUDA 12.8",
            "update the NVIDIA driver",
        ),
        "xpu": probe.Probe("xpu", 0, "not_built", "no xpu", "install"),
        "mps": probe.Probe("mps", 0, "not_built", "no mps", "install"),
        "cpu": probe.Probe("cpu", 1),
    }
    monkeypatch.setattr(probe, "known_types", lambda: tuple(answers))
    monkeypatch.setattr(probe, "probe", answers.get)
    monkeypatch.setattr(devicekit.Device, "available", lambda: [devicekit.Device("cpu")])
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run(capsys, "devices")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= columns
    assert_screen(f"devices_{columns}", out)


def test_devices_without_torch(monkeypatch, capsys):
    for name in ("devicekit.device", "devicekit.probe"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "devicekit.device", None)
    code, out, err = run(capsys, "devices", "--json")
    assert code == 2
    assert json.loads(out)["problem"].startswith("torch cannot be imported")
    assert "devicekit env" in err


# monitor ...


def test_monitor_once(capsys):
    with FakeNvml([Gpu(processes=(Process(pid=1234, name=None),))]):
        code, out, err = run(capsys, "monitor")
    assert (code, err) == (0, "")
    assert "NVIDIA H100" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("form", [[], ["--markdown"]])
def test_monitor_without_a_gpu_is_1_with_one_sentence(capsys, form):
    with FakeNvml(init_error="DriverNotLoaded"):
        code, out, err = run(capsys, "monitor", "--watch", "5", *form)
    assert (code, out) == (1, "")
    assert err.startswith("devicekit: The NVIDIA driver is installed but not loaded.")
    assert len(err.splitlines()) == 1


def test_monitor_json_without_a_gpu_is_still_json(capsys):
    with FakeNvml(init_error="LibraryNotFound"):
        code, out, _ = run(capsys, "monitor", "--json")
    found = json.loads(out)
    assert (code, found["gpus"], found["gpus_reason"]) == (1, [], "no_driver")


def test_monitor_json_once_is_one_document(capsys):
    with FakeNvml(2):
        code, out, _ = run(capsys, "monitor", "--json")
    assert (code, len(json.loads(out)["gpus"])) == (0, 2)


def test_monitor_json_under_watch_is_json_lines(capsys):
    with FakeNvml(2):
        code, out, _ = run(capsys, "monitor", "--json", "--watch", "0.25", "--count", "3")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, len(lines)) == (0, 3)
    assert lines[0]["time_unix_seconds"] < lines[2]["time_unix_seconds"]


def test_monitor_markdown(capsys):
    with FakeNvml():
        code, out, _ = run(capsys, "monitor", "--markdown")
    assert code == 0
    assert "| GPU | CUDA | Name" in out


def test_monitor_below_each_other_has_the_time(capsys):
    with FakeNvml():
        code, out, _ = run(capsys, "monitor", "--watch", "0.25", "--count", "2")
    assert code == 0
    assert out.count("NVIDIA driver") == 2
    assert sum(line[:2] == "20" for line in out.splitlines()) == 2


def test_monitor_without_rich_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with FakeNvml():
        code, out, err = run(capsys, "monitor")
    assert code == 0
    assert "| GPU | CUDA | Name" in out
    assert "pip install 'torch-devicekit[monitor]'" in err


def test_monitor_notes_are_said_once(capsys, monkeypatch):
    from devicekit.monitor import Snapshot, snapshot

    with FakeNvml():
        gpus = snapshot().gpus
    shots = [Snapshot(gpus=gpus, source="nvidia-smi", notes=("Less is known.",))] * 3
    monkeypatch.setattr("devicekit.monitor.snapshots", lambda interval, count: iter(shots))
    _, _, err = run(capsys, "monitor", "--watch", "--json")
    assert err == "devicekit: Less is known.\n"


# Terminals ...


@pytest.mark.parametrize(
    ("variables", "tty", "color"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_when_there_is_colour(monkeypatch, variables, tty, color):
    class Stream:
        def isatty(self):
            return tty

    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.use_color(Stream()) is color


@pytest.mark.parametrize("command", [["monitor"], ["env"], ["devices"]])
def test_forced_colour_and_none(monkeypatch, capsys, command):
    monkeypatch.setattr("devicekit.env.environment", lambda: report("error"))
    for name, expected in (("FORCE_COLOR", True), ("NO_COLOR", False)):
        monkeypatch.setenv(name, "1")
        with FakeNvml():
            _, out, _ = run(capsys, *command)
        assert ("\x1b[" in out) is expected


@pytest.mark.parametrize("columns", [60, 100])
def test_columns(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with FakeNvml(driver="550.54.14"):
        _, out, _ = run(capsys, "monitor")
    assert max(map(len, out.splitlines())) <= columns
    assert ("700W" in out) is (columns == 100)


PROGRAM = """
import sys
from devicekit.cli import main
from devicekit.testing import FakeNvml
with FakeNvml([FakeNvml.Gpu(name={name!r})] * 2):
    sys.exit(main(sys.argv[1:]))
"""


def start(*arguments, name="NVIDIA H100", **options):
    program = PROGRAM.format(name=name)
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, cwd=ROOT, **options
    )


def test_a_reader_that_leaves_is_no_error():
    process = start("monitor", "--json", "--watch", "0.25")
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(timeout=60), err) == (141, b"")
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_watch_with_0():
    process = start("monitor", "--json", "--watch", "5")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, b"", b"")


def test_ctrl_c_ends_the_others_with_130(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("devicekit.env.environment", interrupt)
    assert run(capsys, "env") == (130, "", "")


def test_a_terminal_that_cannot_show_a_name():
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    process = start("monitor", name="NVIDIA \u00e9", env=environ)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert b"NVIDIA \\xe9" in out


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
def test_a_terminal_is_refreshed_in_place():
    import pty

    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = start("monitor", "--watch", "0.25", "--count", "3", stdout=slave, env=environ)
    os.close(slave)
    seen = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux reports the end of a terminal so
            break
        if not part:
            break
        seen += part
    os.close(master)
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), err) == (0, b"")
    assert seen.count(b"NVIDIA driver") >= 3
    assert b"\x1b[2K" in seen  # lines are cleared and drawn again
    assert seen.endswith(b"\x1b[?25h")  # the cursor is shown again


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "devicekit", "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout == f"devicekit {devicekit.__version__}\n"


# Other environments; each variable names a Python interpreter ...


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "command", "codes"),
    [
        ("DEVICEKIT_TEST_PYTHON_WITHOUT_TORCH", ["env"], {2}),
        ("DEVICEKIT_TEST_PYTHON_WITHOUT_TORCH", ["devices"], {2}),
        ("DEVICEKIT_TEST_PYTHON_WITHOUT_TORCH", ["monitor"], {0, 1}),
        ("DEVICEKIT_TEST_PYTHON_WITH_CUDA_BUILD", ["env"], {0, 1}),
        ("DEVICEKIT_TEST_PYTHON_WITH_CUDA_BUILD", ["devices"], {0}),
        ("DEVICEKIT_TEST_PYTHON_WITH_CUDA_BUILD", ["devices", "cuda"], {0, 1}),
        ("DEVICEKIT_TEST_PYTHON_WITH_CUDA_BUILD", ["monitor"], {0, 1}),
    ],
)
def test_in_other_environments(variable, command, codes):
    interpreter = os.environ.get(variable)
    if not interpreter:
        pytest.skip(f"{variable} does not name a Python interpreter")
    done = subprocess.run(
        [interpreter, "-W", "error", "-m", "devicekit", *command],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert textwrap.dedent(done.stdout) or done.stderr


@pytest.mark.parametrize("columns", ["²", "9" * 5000, "-1", "wide"])
def test_a_width_that_is_no_number_does_not_matter(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    with FakeNvml():
        assert cli.main(["monitor"]) == 0
    assert "H100" in capsys.readouterr().out
