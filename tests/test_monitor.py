import dataclasses
import io
import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from golden_screens import assert_screen
from hypothesis import given
from hypothesis import strategies as st

import devicekit
from devicekit.errors import DeviceSpecError
from devicekit.monitor import (
    REASONS,
    UNAVAILABLE,
    OwnMemory,
    Snapshot,
    snapshot,
    snapshots,
    visible,
)
from devicekit.monitor.smi import number
from devicekit.monitor.table import as_markdown, as_rich, size
from devicekit.testing import FakeNvml

Gpu, Mig, Process = FakeNvml.Gpu, FakeNvml.Mig, FakeNvml.Process
MIB = 1024**2
GIB = 1024**3


pytestmark = pytest.mark.usefixtures("plain_machine")


# The snapshot ...


def test_a_whole_gpu():
    running = (
        Process(pid=100, memory=3 * GIB, sm=40, name="C:\\Python\\python.exe"),
        Process(pid=200, memory=5 * GIB, name="/usr/bin/blender --render", graphics=True),
    )
    with FakeNvml([Gpu(temperature=61, power=123_456, utilization=77, processes=running)]):
        found = snapshot()
    (gpu,) = found.gpus
    assert (found.source, found.driver, found.driver_max_cuda) == ("nvml", "550.54.14", "12.4")
    assert (gpu.nvml_index, gpu.cuda_index, gpu.compute_capability) == (0, 0, "9.0")
    assert (gpu.temperature_celsius, gpu.power_milliwatts) == (61, 123_456)
    assert gpu.utilization_percent == 77
    assert gpu.memory_free_bytes == 80 * GIB - 2 * GIB - GIB // 2
    assert [(p.pid, p.name, p.kind) for p in gpu.processes] == [
        (200, "blender --render", "graphics"),
        (100, "python.exe", "compute"),
    ]


def test_a_process_that_computes_and_draws_is_one_row():
    running = (Process(pid=100), Process(pid=100, graphics=True))
    with FakeNvml([Gpu(processes=running)]):
        (process,) = snapshot().gpus[0].processes
    assert process.kind == "compute+graphics"


def test_this_process_is_marked():
    with FakeNvml([Gpu(processes=(Process(pid=os.getpid()), Process(pid=1)))]):
        found = {process.pid: process.is_this_process for process in snapshot().gpus[0].processes}
    assert found == {os.getpid(): True, 1: False}


def test_processes_that_may_not_be_listed():
    refused = dict.fromkeys(
        [f"nvmlDeviceGetComputeRunningProcesses{version}" for version in ("_v3", "_v2", "")],
        "NoPermission",
    )
    with FakeNvml([Gpu(errors=refused)]):
        (gpu,) = snapshot().gpus
    assert (gpu.processes, gpu.reasons["processes"]) == ((), "permission")


def test_snapshots_take_their_time():
    with FakeNvml():
        times = [shot.time_unix_seconds for shot in snapshots(0.05, count=3)]
    assert times[2] - times[0] >= 0.08


def test_json_can_be_read_back():
    with FakeNvml(2):
        found = snapshot().to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["schema_version"] == 1
    assert found["gpus"][0]["memory_used_bytes"] == 2 * GIB
    assert found["gpus"][0]["power_milliwatts"] == 100_000


def test_records_are_frozen_and_hashable():
    with FakeNvml():
        found = snapshot()
    assert hash(found) == hash(found)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.driver = "1"


@pytest.mark.parametrize(
    ("number", "text"), [(12040, "12.4"), (11080, "11.8"), (9000, "9.0"), (10010, "10.1")]
)
def test_r101_the_drivers_number_for_cuda(number, text):
    with FakeNvml(cuda_driver=number):
        assert snapshot().driver_max_cuda == text


def test_r110_without_nvml_a_snapshot_is_empty_and_says_why():
    """Of this machine itself; where it has a GPU, the snapshot has it."""
    found = devicekit.snapshot()
    assert bool(found.gpus) == (found.reason is None)
    assert found.gpus or (found.problem and found.remedy)


# nvidia-smi ...


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Put a script in the place of nvidia-smi, and no binding in the place of pynvml."""
    if sys.platform == "win32":
        pytest.skip("the stand-in is a shell script")

    def install(body):
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
        monkeypatch.setitem(sys.modules, "pynvml", None)

    return install


GPU_ROWS = """\
0, GPU-aa, "NVIDIA T4, 16 GB", 00000000:01:00.0, 55, 27.51, 70.00, 15360, 512, 14848, 3, 550.54, 7.5
1, GPU-bb, NVIDIA T4, 00000000:02:00.0, [N/A], [Not Supported], [Insufficient Permissions], \
15360, 0, 15360, [Unknown Error], 550.54, 7.5
"""
APPS = "GPU-aa, 42, /opt/tools/python3, 500\nGPU-aa, 43, [Not Found], [N/A]\n"


def smi_script(gpus=GPU_ROWS, apps=APPS):
    return (
        f"case \"$*\" in\n*query-gpu*) cat <<'END'\n{gpus}END\n;;\n"
        f"*) cat <<'END'\n{apps}END\n;;\nesac"
    )


def test_r112_words_among_the_numbers(nvidia_smi):
    nvidia_smi(smi_script())
    found = snapshot()
    first, second = found.gpus
    assert (found.source, found.driver) == ("nvidia-smi", "550.54")
    assert (first.name, first.temperature_celsius) == ("NVIDIA T4, 16 GB", 55)
    assert (first.power_milliwatts, first.memory_used_bytes) == (27510, 512 * MIB)
    assert (first.compute_capability, first.utilization_percent) == ("7.5", 3)
    assert second.memory_used_bytes == 0
    assert second.reasons["temperature_celsius"] == "not_supported"
    assert second.reasons["power_milliwatts"] == "not_supported"
    assert second.reasons["power_limit_milliwatts"] == "permission"
    assert second.reasons["utilization_percent"] == "unknown_error"
    assert [(p.pid, p.name, p.memory_used_bytes) for p in first.processes] == [
        (42, "python3", 500 * MIB),
        (43, None, None),
    ]
    assert first.processes[1].reasons["name"] == "not_found"
    assert "pip install 'torch-devicekit[monitor]'" in found.notes[0]


def test_the_driver_is_asked_once_for_all_snapshots_from_nvidia_smi(nvidia_smi, monkeypatch):
    asked = []
    monkeypatch.setattr(visible, "driver_order", lambda: asked.append(1) or ["GPU-bb", "GPU-aa"])
    nvidia_smi(smi_script())
    shots = list(snapshots(0.01, count=3))
    assert [[gpu.cuda_index for gpu in shot.gpus] for shot in shots] == [[1, 0]] * 3
    assert len(asked) == 1


def test_an_old_nvidia_smi_without_the_capability(nvidia_smi):
    rows = "".join(line.rpartition(",")[0] + "\n" for line in GPU_ROWS.splitlines())
    words = 'echo "Field compute_cap is not a valid field to query."'
    refuse = f'case "$*" in *compute_cap*) {words}; exit 2;; esac'
    nvidia_smi(f"{refuse}\n{smi_script(gpus=rows)}")
    found = snapshot()
    assert [gpu.compute_capability for gpu in found.gpus] == [None, None]
    assert found.gpus[0].reasons["compute_capability"] == "not_reported"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('echo "NVIDIA-SMI has failed because it couldn\'t communicate"; exit 9', "has failed"),
        ("echo broken >&2; exit 1", "broken"),
        ("exit 3", "exit status 3"),
        ("head -c 200000 /dev/zero | tr '\\0' x; exit 1", "xxx"),
    ],
)
def test_r113_a_failing_nvidia_smi_is_the_reason(nvidia_smi, body, words):
    nvidia_smi(body)
    found = snapshot()
    assert (found.gpus, found.reason) == ((), "nvidia_smi_failed")
    assert words in found.problem
    assert len(found.problem) < 300


def test_r113_a_hanging_nvidia_smi_ends(nvidia_smi, monkeypatch):
    monkeypatch.setattr("devicekit.monitor.smi.TIMEOUT_S", 0.2)
    nvidia_smi("exec sleep 60")
    found = snapshot()
    assert found.reason == "nvidia_smi_failed"
    assert "no answer" in found.problem


def test_a_table_that_is_none_is_the_reason(nvidia_smi, tmp_path):
    (tmp_path / "table").write_text('"' + "x" * 200_000)  # quotes that are never closed
    nvidia_smi(f"cat {tmp_path / 'table'}")
    found = snapshot()
    assert found.reason == "nvidia_smi_failed"
    assert "its output is no table" in found.problem


@pytest.mark.parametrize("pid", ["[N/A]", "N/A", "", "9" * 5000, "-1"])
def test_a_process_without_a_number_is_left_out_with_a_reason(nvidia_smi, pid):
    nvidia_smi(smi_script(apps=f"GPU-aa, {pid}, python, 300\n"))
    gpu = snapshot().gpus[0]
    assert gpu.processes == ()
    assert gpu.reasons["processes"] == "not_reported"


def test_nvidia_smi_that_lists_nothing(nvidia_smi):
    nvidia_smi("true")
    assert snapshot().reason == "no_gpu"


def test_the_wrong_binding_is_still_told_when_nvidia_smi_helps(nvidia_smi, monkeypatch):
    nvidia_smi(smi_script())
    with FakeNvml(binding="foreign"):
        found = snapshot()
    assert len(found.gpus) == 2
    assert "pip uninstall pynvml" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1024", (1024.0, None)),
        ("87 W", (87.0, None)),
        ("[N/A]", (None, "not_supported")),
        ("N/A", (None, "not_supported")),
        ("", (None, "not_supported")),
        ("[Not Supported]", (None, "not_supported")),
        ("[Insufficient Permissions]", (None, "permission")),
        ("[Unknown Error]", (None, "unknown_error")),
        ("[GPU is lost]", (None, "gpu_lost")),
        ("anything else", (None, "not_reported")),
        ("9" * 400, (None, "implausible")),
        (f"-{'9' * 400}.5", (None, "implausible")),
    ],
)
def test_r112_the_number_parser(text, found):
    assert number(text) == found


@given(st.text(max_size=20))
def test_r112_the_number_parser_never_fails(text):
    value, reason = number(text)
    assert (value is None) == (reason is not None)


@given(st.integers(0, 10**7), st.sampled_from(["", " MiB", " %", " W"]))
def test_r112_numbers_are_read(value, unit):
    assert number(f"{value}{unit}") == (float(value), None)


# FakeNvml itself ...


def test_the_stand_in_is_pynvml_while_it_is_entered(monkeypatch):
    before = sys.modules.get("pynvml")
    with FakeNvml() as outer:
        import pynvml

        assert pynvml is outer
        with FakeNvml() as inner:
            assert sys.modules["pynvml"] is inner
        assert sys.modules["pynvml"] is outer
    assert sys.modules.get("pynvml") is before
    monkeypatch.setitem(sys.modules, "pynvml", None)  # how one forbids an import
    with FakeNvml():
        pass
    assert sys.modules["pynvml"] is None


def test_the_stand_in_raises_the_classes_of_the_binding():
    fake = FakeNvml([Gpu(errors={"nvmlDeviceGetPowerUsage": "NotSupported"})])
    with pytest.raises(fake.NVMLError_Uninitialized):
        fake.nvmlDeviceGetCount()
    fake.nvmlInit()
    handle = fake.nvmlDeviceGetHandleByUUID(
        fake.nvmlDeviceGetUUID(fake.nvmlDeviceGetHandleByIndex(0))
    )
    with pytest.raises(fake.NVMLError) as caught:
        fake.nvmlDeviceGetPowerUsage(handle)
    assert (type(caught.value).__name__, caught.value.value) == ("NVMLError_NotSupported", 3)
    assert str(caught.value) == "Not Supported"
    with pytest.raises(fake.NVMLError_InvalidArgument):
        fake.nvmlDeviceGetHandleByIndex(1)
    fake.nvmlShutdown()
    assert fake.open_count == 0


def test_the_stand_in_names_what_it_does_not_play():
    with pytest.raises(
        AttributeError, match=r"does not play 'nvmlDeviceGetFanSpeed'; it plays: nvml"
    ):
        FakeNvml().nvmlDeviceGetFanSpeed  # noqa: B018


def test_the_stand_in_has_the_functions_and_numbers_of_the_binding():
    real = pytest.importorskip("pynvml")
    fake = FakeNvml()
    for name, value in vars(fake).items():
        if name.startswith("nvml") and callable(value):
            assert callable(getattr(real, name)), name
        elif name.startswith(("NVML_", "nvmlMemory")):
            assert getattr(real, name) == value, name
        elif name.startswith("NVMLError_"):
            theirs = getattr(real, name)()
            assert theirs.value == value.value, name
            words = real.NVMLError._errcode_to_string
            assert words.get(value.value, str(value())) == str(value()), name


# Screens ...


def shot_of(*gpus, **options):
    with FakeNvml(list(gpus), **options):
        return dataclasses.replace(snapshot(), time_unix_seconds=0.0)


def drawn(shot, width, color=False):
    console = pytest.importorskip("rich.console")
    out = io.StringIO()
    console.Console(
        file=out,
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        markup=False,
        legacy_windows=False,
    ).print(as_rich(shot, width=width))
    return out.getvalue()


def two_gpus():
    return shot_of(
        Gpu(
            utilization=97,
            temperature=71,
            power=655_000,
            memory_used=61 * GIB,
            processes=(
                Process(pid=4242, memory=60 * GIB, sm=96),
                Process(pid=4343, memory=512 * MIB, name="/usr/lib/xorg/Xorg", graphics=True),
            ),
        ),
        Gpu(utilization=0, memory_used=4 * MIB),
    )


def every_fault():
    return shot_of(
        Gpu(
            name="NVIDIA GeForce RTX 4090",
            driver_model="WDDM",
            processes=(Process(pid=10, memory=None, name="python.exe"),),
        ),
        Gpu(
            name="NVIDIA A100-SXM4-40GB",
            capability=(8, 0),
            memory_total=40 * GIB,
            mig=(Mig(uuid="MIG-1", memory_used=GIB, processes=(Process(pid=11),)),),
        ),
        Gpu(lost="GpuIsLost"),
        Gpu(
            name="NVIDIA GB10",
            capability=(12, 1),
            errors={"nvmlDeviceGetMemoryInfo": "NotSupported"},
        ),
    )


SHOTS = {"two_gpus": two_gpus, "every_fault": every_fault}


@pytest.mark.parametrize("width", [100, 60])
@pytest.mark.parametrize("name", SHOTS)
def test_the_screen(name, width):
    screen = drawn(SHOTS[name](), width)
    assert "\x1b" not in screen
    assert max(map(len, screen.splitlines())) <= width
    assert screen.isascii()
    assert_screen(f"monitor_{name}_{width}", screen)


def test_the_screen_in_colour():
    assert_screen("monitor_every_fault_100_color", drawn(every_fault(), 100, color=True))


@pytest.mark.parametrize("name", SHOTS)
def test_the_markdown(name):
    assert_screen(f"monitor_{name}_markdown", as_markdown(SHOTS[name]()))


def test_own_memory_on_the_screen():
    own = OwnMemory(
        cuda_index=0,
        allocated_bytes=GIB,
        reserved_bytes=2 * GIB,
        peak_allocated_bytes=GIB + 300 * MIB,
        process_bytes=2 * GIB + 512 * MIB,
        context_bytes=512 * MIB,
    )
    shot = dataclasses.replace(two_gpus(), own=(own,))
    assert_screen("monitor_own_100", drawn(shot, 100))


def test_nothing_to_show():
    shot = Snapshot(problem="No driver.", remedy="Install one.", reasons={"gpus": "no_driver"})
    assert str(shot) == "No driver.\nInstall one.\n"
    assert drawn(shot, 80) == "No driver.\nInstall one.\n"


@given(st.integers(0, 2**50))
def test_sizes_are_short(count):
    assert len(size(count)) <= len("1048576.0 GiB")
    assert size(count).endswith(("MiB", "GiB"))


@pytest.mark.parametrize("width", range(20, 130, 7))
def test_no_width_breaks_the_screen(width):
    assert "GPU" in drawn(every_fault(), width)


# Importing ...


def test_importing_the_monitor_imports_neither_binding_nor_rich_nor_torch():
    program = """
        import sys
        import devicekit.monitor, devicekit.env, devicekit.cli, devicekit.testing.nvml
        assert not {"torch", "pynvml", "rich", "pytest"} & set(sys.modules), sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_the_docs_explain_every_reason():
    page = Path(__file__).parents[1] / "docs" / "monitor.md"
    text = page.read_text()
    assert [code for code in (*REASONS, *UNAVAILABLE) if f"`{code}`" not in text] == []


@pytest.mark.parametrize("number", ["9" * 5000, "+" + "9" * 5000])
def test_a_mask_of_any_length_is_read(number):
    assert visible.visible_entries(f"1,{number}")[0] == 1
    assert visible.visible_entries(f"-{number},1") == []


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount", "nvmlDeviceGetMaxMigDeviceCount"])
def test_a_count_that_cannot_be_true_is_not_counted_to(function, monkeypatch):
    fake = FakeNvml([Gpu(mig=(Mig(uuid="MIG-1"),))])
    monkeypatch.setattr(fake, function, lambda *args: 2**32 - 1)
    with fake:
        found = snapshot()
    if function == "nvmlDeviceGetCount":
        assert (found.gpus, found.reason) == ((), "nvml_error")
    else:
        assert len(found.gpus[0].mig_devices) == 1


def test_a_hidden_gpu_is_not_the_one_of_no_device(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    with FakeNvml():
        found = snapshot()
    with pytest.raises(DeviceSpecError, match=r"no CUDA device: `reasons\['cuda_index'\]` .* why"):
        found.gpu(None)


def test_a_gpu_that_is_not_there_is_an_error_with_a_remedy():
    with FakeNvml(2), pytest.raises(DeviceSpecError, match="cuda:0, cuda:1: give one of these"):
        snapshot().gpu("cuda:2")
    with (
        FakeNvml(init_error="LibraryNotFound"),
        pytest.raises(DeviceSpecError, match=r"no GPU: No NVIDIA driver .* Install"),
    ):
        snapshot().gpu("cuda")
    with pytest.raises(DeviceSpecError, match="no GPU"):
        Snapshot().gpu(0)


@pytest.mark.parametrize("version", ["9" * 5000, f"535.{'9' * 5000}", ""])
def test_a_driver_version_of_any_length_is_read(version, monkeypatch):
    fake = FakeNvml([Gpu(processes=(Process(pid=1),))])
    monkeypatch.setattr(fake, "nvmlSystemGetDriverVersion", lambda: version)
    with fake:
        assert len(snapshot().gpus[0].processes) == 1
