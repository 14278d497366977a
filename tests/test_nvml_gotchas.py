"""The sixteen ways in which NVML surprises monitors, each against the stand-in for it.

No GPU was at hand: what is pinned here is what NVIDIA documents, the binding's source says and
users report.
"""

import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import devicekit
from devicekit.monitor import REASONS, UNAVAILABLE, collect, snapshot, snapshots, visible
from devicekit.monitor import processes as processes_module
from devicekit.testing import FakeNvml

Gpu, Mig, Process = FakeNvml.Gpu, FakeNvml.Mig, FakeNvml.Process
MIB = 1024**2
GIB = 1024**3


pytestmark = pytest.mark.usefixtures("plain_machine")


def take(*gpus, **options):
    with FakeNvml(list(gpus) or 1, **options):
        return snapshot()


def codes(found):
    """Return every reason in a snapshot, with the path to it."""
    if isinstance(found, dict):
        for key, value in found.items():
            if key.endswith("_reason"):
                yield value
            yield from codes(value)
    elif isinstance(found, list):
        for each in found:
            yield from codes(each)


# 1. usedGpuMemory is None on WDDM ...


@pytest.mark.parametrize("memory", [None, 2**64 - 1], ids=["None", "all ones"])
def test_01_r105_wddm_memory_of_processes_is_none_with_a_reason(memory):
    (gpu,) = take(Gpu(driver_model="WDDM", processes=(Process(pid=7, memory=memory),))).gpus
    (process,) = gpu.processes
    assert (process.memory_used_bytes, process.reasons["memory_used_bytes"]) == (None, "wddm")
    assert gpu.driver_model == "WDDM"
    assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (2 * GIB, 80 * GIB)


def test_01_r105_all_ones_from_a_binding_that_leaves_them(monkeypatch):
    with FakeNvml([Gpu(processes=(Process(pid=7, memory=2**64 - 1),))]):
        (process,) = snapshot().gpus[0].processes
    assert (process.memory_used_bytes, process.reasons["memory_used_bytes"]) == (
        None,
        "not_supported",
    )


def test_01_tcc_knows_the_memory_of_processes():
    (gpu,) = take(Gpu(driver_model="TCC", processes=(Process(pid=7, memory=5 * MIB),))).gpus
    assert gpu.driver_model == "TCC"
    assert gpu.processes[0].memory_used_bytes == 5 * MIB


def test_01_wsl_is_wddm_as_well(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("Linux version 5.15.0-microsoft-standard-WSL2")
    monkeypatch.setattr(processes_module, "PROC", tmp_path)
    (gpu,) = take(Gpu(processes=(Process(pid=7, memory=None),))).gpus
    assert gpu.processes[0].reasons["memory_used_bytes"] == "wddm"


# 2. Struct drift ...


@pytest.mark.parametrize(
    ("driver", "used"),
    [
        ("470.57.02", "_v2"),
        ("510.39.01", "_v3"),
        ("535.43.02", "_v2"),
        ("535.54.03", "_v2"),
        ("535.86.05", "_v2"),
        ("535.98", "_v2"),
        ("535.104.05", "_v3"),
        ("580.65.06", "_v3"),
    ],
)
def test_02_every_driver_gives_the_same_processes(driver, used):
    running = tuple(Process(pid=pid, memory=pid * MIB) for pid in (1184, 16040, 19984))
    with FakeNvml([Gpu(processes=running)], driver=driver) as fake:
        (gpu,) = snapshot().gpus
    found = {process.pid: process.memory_used_bytes for process in gpu.processes}
    assert found == {pid: pid * MIB for pid in (1184, 16040, 19984)}
    assert f"nvmlDeviceGetComputeRunningProcesses{used}" in fake.calls


def test_02_a_driver_older_than_all_of_them_has_no_list():
    (gpu,) = take(Gpu(processes=(Process(pid=7),)), driver="418.39").gpus
    assert (gpu.processes, gpu.reasons["processes"]) == ((), "driver_too_old")
    assert gpu.memory_used_bytes == 2 * GIB


def test_02_a_list_that_cannot_be_true_is_not_shown():
    running = tuple(Process(pid=pid) for pid in (1184, 16040, 19984))
    missing = ["nvmlDeviceGetComputeRunningProcesses_v2"]
    (gpu,) = take(Gpu(processes=running), driver="535.54.03", missing=missing).gpus
    assert (gpu.processes, gpu.reasons["processes"]) == ((), "implausible")


def test_02_a_process_cannot_hold_more_than_the_gpu_has():
    (gpu,) = take(Gpu(processes=(Process(pid=7, memory=2**50),))).gpus
    assert gpu.processes[0].reasons["memory_used_bytes"] == "implausible"


def test_02_a_missing_function_is_asked_for_once():
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    with FakeNvml(3, driver="470.57.02") as fake:
        assert len(list(snapshots(0.01, count=3))) == 3
    assert fake.calls.count(name) == 1


# 3. Memory that the driver keeps ...


@pytest.mark.parametrize(
    ("options", "used", "reserved", "reason"),
    [
        ({"driver": "550.54.14"}, 2 * GIB, GIB // 2, None),
        ({"driver": "470.57.02"}, 2 * GIB, None, "driver_too_old"),
        ({"driver": "550.54.14", "binding": "old"}, 2 * GIB + GIB // 2, None, "binding_too_old"),
    ],
    ids=["second version", "old driver", "old binding"],
)
def test_03_used_memory_leaves_out_what_the_driver_reserves(options, used, reserved, reason):
    (gpu,) = take(Gpu(), **options).gpus
    assert (gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (used, reserved)
    assert gpu.reasons.get("memory_reserved_bytes") == reason


# 4. The wrong package of the same name ...


def test_04_another_package_named_pynvml_is_recognised():
    found = take(Gpu(), binding="foreign")
    assert (found.gpus, found.reason) == ((), "wrong_binding")
    assert "pip uninstall pynvml" in found.remedy
    assert "nvidia-ml-py" in found.remedy


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        ("import warnings\nwarnings.warn('The pynvml package is deprecated.', FutureWarning)", ""),
        ("print 'Python 2'", "SyntaxError"),
        ("import a_module_that_is_not_there", "a_module_that_is_not_there"),
    ],
    ids=["R111 deprecated", "for Python 2", "half installed"],
)
def test_04_a_real_module_that_is_not_the_binding(tmp_path, monkeypatch, content, detail):
    (tmp_path / "pynvml.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    found = snapshot()  # a FutureWarning would be an error here
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert found.reason == "wrong_binding"
    assert detail in found.problem


def test_04_r111_the_deprecated_package_with_the_right_module_inside(tmp_path, monkeypatch):
    content = """
        import sys, warnings
        from devicekit.testing import FakeNvml
        warnings.warn("The pynvml package is deprecated. Please install nvidia-ml-py instead.",
                      FutureWarning)
        sys.modules[__name__] = FakeNvml(3)
    """
    (tmp_path / "pynvml.py").write_text(textwrap.dedent(content))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    found = snapshot()  # a FutureWarning would be an error here
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    assert len(found.gpus) == 3


def test_04_no_binding_and_no_nvidia_smi_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", "")
    found = snapshot()
    assert (found.gpus, found.reason) == ((), "no_binding")
    assert "pip install 'torch-devicekit[monitor]'" in found.remedy


# 5. No driver, not loaded, mismatch ...


@pytest.mark.parametrize(
    ("error", "reason", "word"),
    [
        ("LibraryNotFound", "no_driver", "not found"),
        ("DriverNotLoaded", "driver_not_loaded", "not loaded"),
        ("LibRmVersionMismatch", "version_mismatch", "different versions"),
        ("NoPermission", "permission", "refuses"),
        ("Unknown", "nvml_error", "Unknown"),
    ],
)
def test_05_each_failure_to_start_has_its_own_sentence(error, reason, word):
    found = take(init_error=error)
    assert (found.gpus, found.source, found.reason) == ((), None, reason)
    assert word in found.problem
    assert found.remedy


def test_05_a_driver_without_a_gpu():
    with FakeNvml(0):
        found = snapshot()
    assert (found.source, found.driver, found.reason) == ("nvml", "550.54.14", "no_gpu")


# 6. Text ...


def test_06_bytes_are_decoded():
    found = take(Gpu(name=b"NVIDIA T4", processes=(Process(pid=7),)), binding="old")
    (gpu,) = found.gpus
    assert (gpu.name, found.driver, gpu.pci_bus_id) == (
        "NVIDIA T4",
        "550.54.14",
        "00000000:01:00.0",
    )
    assert gpu.uuid.startswith("GPU-")
    assert gpu.processes[0].name == "python3"


@pytest.mark.parametrize("binding", ["nvidia-ml-py", "old"])
def test_06_corrupt_text_is_a_reason(binding):
    (gpu,) = take(Gpu(name=b"NVIDIA \xff\xfe"), binding=binding).gpus
    assert (gpu.name, gpu.reasons["name"]) == (None, "corrupt_text")


# 7. CUDA's order ...


def test_07_one_kind_of_gpu_is_in_the_order_of_the_bus():
    with FakeNvml(3):
        assert [gpu.cuda_index for gpu in snapshot().gpus] == [0, 1, 2]


def test_07_gpus_of_different_speed_need_the_driver(monkeypatch):
    mixed = (Gpu(name="NVIDIA T4"), Gpu(name="NVIDIA H100"))
    found = take(*mixed)
    assert [gpu.cuda_index for gpu in found.gpus] == [None, None]
    assert found.gpus[0].reasons["cuda_index"] == "cuda_index_unknown"
    fastest_first = [found.gpus[1].uuid, found.gpus[0].uuid]
    monkeypatch.setattr(visible, "driver_order", lambda: fastest_first)
    assert [gpu.cuda_index for gpu in take(*mixed).gpus] == [1, 0]


def test_07_the_driver_is_asked_once_for_all_snapshots_of_the_same_gpus(monkeypatch):
    asked = []
    monkeypatch.setattr(visible, "driver_order", lambda: asked.append(1) or ["GPU-2", "GPU-1"])
    mixed = [Gpu(name="NVIDIA T4", uuid="GPU-1"), Gpu(name="NVIDIA H100", uuid="GPU-2")]
    with FakeNvml(mixed):
        shots = list(snapshots(0.01, count=3))
    assert [[gpu.cuda_index for gpu in shot.gpus] for shot in shots] == [[1, 0]] * 3
    assert len(asked) == 1


def test_07_the_driver_is_asked_again_when_the_devices_or_the_variables_change(monkeypatch):
    asked = []
    monkeypatch.setattr(visible, "driver_order", lambda: asked.append(1))
    mixed = (Gpu(name="NVIDIA T4"), Gpu(name="NVIDIA H100"))
    split = (Gpu(name="NVIDIA T4"), Gpu(name="NVIDIA H100", mig=(Mig(uuid="MIG-1"),)))
    fakes = (FakeNvml(mixed), FakeNvml(mixed), FakeNvml(split), FakeNvml(split))
    counts, orders = [], {}
    for fake, mask in zip(fakes, ("0,1", "1", "1", "1"), strict=True):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        with fake:
            collect._snapshot(orders)
        counts.append(len(asked))
    assert counts == [1, 2, 3, 3]


def test_07_cuda_device_order_settles_it(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    found = take(Gpu(name="NVIDIA T4"), Gpu(name="NVIDIA H100"))
    assert [gpu.cuda_index for gpu in found.gpus] == [0, 1]


@pytest.mark.parametrize("prefix", ["", "GPU-"])
def test_07_torch_in_use_is_asked_by_uuid(monkeypatch, prefix):
    torch = pytest.importorskip("torch")
    uuids = [gpu.uuid for gpu in take(Gpu(), Gpu()).gpus]
    theirs = [uuid.replace("GPU-", prefix) for uuid in reversed(uuids)]
    cuda_in_use(monkeypatch, torch, theirs)
    assert [gpu.cuda_index for gpu in take(Gpu(), Gpu()).gpus] == [1, 0]


def cuda_in_use(monkeypatch, torch, uuids):
    """Let torch.cuda answer as in a process that uses these GPUs."""
    answers = {
        "is_initialized": lambda: True,
        "device_count": lambda: len(uuids),
        "get_device_properties": lambda index: SimpleNamespace(uuid=uuids[index]),
        "memory_allocated": lambda index: (index + 1) * 100 * MIB,
        "memory_reserved": lambda index: (index + 1) * 200 * MIB,
        "max_memory_allocated": lambda index: (index + 1) * 150 * MIB,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)


# 8. The grammar of CUDA_VISIBLE_DEVICES ...


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, None),
        ("", []),
        ("0,0", []),
        ("0,-1,1", [0]),
        ("1gpu2,2ampere", [1, 2]),
        ("GPU-a, GPU-b", ["GPU-a"]),
        ("GPU-a,GPU-a", []),
        ("MIG-1,MIG-2", ["MIG-1", "MIG-2"]),
        ("none", []),
        (" 2 ,3", [2, 3]),
    ],
)
def test_08_the_grammar(value, entries):
    assert visible.visible_entries(value) == entries


@given(st.text(alphabet="0123,-+ aGPUMI", max_size=12))
def test_08_the_grammar_is_torchs(value):
    compat = pytest.importorskip("devicekit.compat")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", value)
        try:
            theirs = compat.visible_devices()
        except ValueError:  # torch stumbles over a sign without a number, which is not a number
            return
    assert visible.visible_entries(value) == theirs


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("2,3", [None, None, 0, 1]),
        ("3,1", [None, 1, None, 0]),
        ("", [None] * 4),
        ("-1", [None] * 4),
        ("1,9,2", [None, 0, None, None]),
        ("GPU-00000002,GPU-00000000", [1, None, 0, None]),
        ("GPU-0000000", [None] * 4),
        ("GPU-00000001,GPU-ffffffff,GPU-00000002", [None, 0, None, None]),
    ],
    ids=["R108", "swapped", "empty", "-1", "beyond", "uuids", "ambiguous", "unknown uuid"],
)
def test_08_r108_masked_gpus_keep_their_nvml_index(monkeypatch, value, indices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    found = take(*(Gpu(utilization=10 * (index + 1)) for index in range(4)))
    assert [gpu.cuda_index for gpu in found.gpus] == indices
    assert [gpu.nvml_index for gpu in found.gpus] == [0, 1, 2, 3]
    hidden = [gpu for gpu in found.gpus if gpu.cuda_index is None]
    assert {gpu.reasons["cuda_index"] for gpu in hidden} <= {"masked"}
    for gpu in found.gpus:
        if gpu.cuda_index is not None:
            assert found.gpu(gpu.cuda_index) is gpu
            assert found.gpu(f"cuda:{gpu.cuda_index}").utilization_percent == 10 * (
                gpu.nvml_index + 1
            )


# 9. MIG ...


def mig_gpu():
    parts = (
        Mig(uuid="MIG-1111", memory_used=GIB, processes=(Process(pid=11, memory=GIB),)),
        Mig(uuid="MIG-2222", memory_used=0),
    )
    return Gpu(name="NVIDIA A100-SXM4-40GB", capability=(8, 0), mig=parts)


def test_09_mig_devices_have_their_own_rows():
    (gpu,) = take(mig_gpu()).gpus
    assert [part.mig_index for part in gpu.mig_devices] == [0, 1]
    assert [part.memory_used_bytes for part in gpu.mig_devices] == [GIB, 0]
    assert [part.memory_total_bytes for part in gpu.mig_devices] == [5 * GIB, 5 * GIB]
    assert (gpu.utilization_percent, gpu.reasons["utilization_percent"]) == (None, "mig")
    assert gpu.mig_devices[0].reasons["utilization_percent"] == "mig"


def test_09_a_process_on_mig_is_listed_once_with_its_memory():
    (gpu,) = take(mig_gpu()).gpus
    assert gpu.processes == ()
    (process,) = gpu.mig_devices[0].processes
    assert (process.pid, process.memory_used_bytes) == (11, GIB)


def test_09_a_mask_of_mig_uuids_numbers_the_parts(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2222,MIG-1111")
    (gpu,) = take(mig_gpu()).gpus
    assert [part.cuda_index for part in gpu.mig_devices] == [1, 0]
    assert (gpu.cuda_index, gpu.reasons["cuda_index"]) == (None, "mig")


def test_09_without_a_mask_only_the_driver_knows_which_part_cuda_takes(monkeypatch):
    (gpu,) = take(mig_gpu()).gpus
    assert gpu.mig_devices[0].reasons["cuda_index"] == "cuda_index_unknown"
    monkeypatch.setattr(visible, "driver_order", lambda: ["GPU-1111"])
    (gpu,) = take(mig_gpu()).gpus
    assert [part.cuda_index for part in gpu.mig_devices] == [0, None]


# 10. Containers ...


def test_10_host_pids_keep_their_row_without_a_name(monkeypatch):
    monkeypatch.setattr(processes_module, "_in_container", lambda: True)
    (gpu,) = take(Gpu(processes=(Process(pid=os.getpid() + 1, name=None),))).gpus
    (process,) = gpu.processes
    assert (process.name, process.reasons["name"]) == (None, "container")
    assert "--pid=host" in REASONS["container"]
    assert process.memory_used_bytes == GIB


def test_10_a_process_in_here_that_holds_the_gpu_keeps_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(processes_module, "_in_container", lambda: True)
    files = tmp_path / "77" / "fd"
    files.mkdir(parents=True)
    (files / "5").symlink_to("/dev/nvidia0")
    monkeypatch.setattr(processes_module, "PROC", tmp_path)
    (gpu,) = take(Gpu(processes=(Process(pid=77),))).gpus
    assert gpu.processes[0].name == "python3"


def test_10_the_namespace_tells_a_container(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(processes_module, "PROC", tmp_path)
    assert not processes_module._in_container()  # no /proc: another system
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "pid").symlink_to("pid:[4026532198]")
    assert processes_module._in_container()
    (tmp_path / "self" / "ns" / "pid").unlink()
    (tmp_path / "self" / "ns" / "pid").symlink_to("pid:[4026531836]")
    assert not processes_module._in_container()


def test_10_a_name_nvml_does_not_know_comes_from_proc(monkeypatch, tmp_path):
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "comm").write_text("trainer\n")
    monkeypatch.setattr(processes_module, "PROC", tmp_path)
    (gpu,) = take(Gpu(processes=(Process(pid=77, name=None), Process(pid=78, name=None)))).gpus
    names = {process.pid: process.name or process.reasons["name"] for process in gpu.processes}
    assert names == {77: "trainer", 78: "exited"}


# 11. Utilisation of processes ...


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ((Process(pid=1, sm=80), Process(pid=2)), {1: 80, 2: 0}),
        ((Process(pid=1), Process(pid=2)), {1: 0, 2: 0}),
        ((Process(pid=1, sm=80), Process(pid=2, memory=None)), {1: 80, 2: "no_sample"}),
    ],
    ids=["idle is 0", "no samples at all", "not available is not 0"],
)
def test_11_no_sample_is_zero_only_where_nothing_is_hidden(running, expected):
    (gpu,) = take(Gpu(processes=running)).gpus
    found = {
        process.pid: process.reasons.get("sm_percent", process.sm_percent)
        for process in gpu.processes
    }
    assert found == expected


def test_11_a_driver_that_cannot_tell_says_so():
    gpu = Gpu(
        processes=(Process(pid=1, sm=80),),
        errors={"nvmlDeviceGetProcessUtilization": "NotSupported"},
    )
    (found,) = take(gpu).gpus
    assert found.processes[0].reasons["sm_percent"] == "not_supported"


# 12. A lost GPU ...


@pytest.mark.parametrize(
    ("error", "reason"), [("GpuIsLost", "gpu_lost"), ("Unknown", "unknown_error")]
)
def test_12_a_lost_gpu_does_not_hide_the_others(error, reason):
    found = take(Gpu(), Gpu(lost=error), Gpu(temperature=66))
    assert [gpu.nvml_index for gpu in found.gpus] == [0, 1, 2]
    assert found.gpus[2].temperature_celsius == 66
    lost = found.gpus[1]
    assert lost.name is None
    assert set(lost.reasons.values()) == {reason}


def test_12_a_gpu_lost_between_two_questions():
    errors = {"nvmlDeviceGetTemperature": "GpuIsLost", "nvmlDeviceGetPowerUsage": "GpuIsLost"}
    (gpu,) = take(Gpu(errors=errors)).gpus
    assert gpu.reasons["temperature_celsius"] == "gpu_lost"
    assert gpu.name == "NVIDIA H100 80GB HBM3"


# 13. Opened and closed in pairs ...


def test_13_every_init_has_its_shutdown():
    with FakeNvml(2) as fake:
        import pynvml

        pynvml.nvmlInit()  # somebody else's
        snapshot()
        list(snapshots(0.01, count=2))
        assert fake.open_count == 1


def test_13_an_error_in_between_closes_as_well():
    broken = Gpu(errors={"nvmlDeviceGetName": "InvalidArgument"})
    with FakeNvml([broken]) as fake:
        (gpu,) = snapshot().gpus
        assert gpu.reasons["name"] == "nvml_error"
        shown = snapshots(0.01)
        next(shown)
        shown.close()
        assert fake.open_count == 0


def test_13_importing_opens_nothing():
    with FakeNvml() as fake:
        import devicekit.env
        import devicekit.monitor  # noqa: F401
    assert fake.calls == []


# 14. No context, no fork poisoned ...


def test_14_r115_a_snapshot_touches_neither_torch_nor_cuda():
    program = """
        import sys
        from devicekit.testing import FakeNvml
        import devicekit
        with FakeNvml([FakeNvml.Gpu(), FakeNvml.Gpu(name="another")]):
            assert len(devicekit.snapshot().gpus) == 2
        assert "torch" not in sys.modules
        maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
        assert "libcuda.so" not in maps
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_14_r115_cuda_stays_uninitialised(monkeypatch):
    torch = pytest.importorskip("torch")

    def refuse(*args, **kwargs):
        raise AssertionError("a snapshot initialised CUDA")

    for name in ("_lazy_init", "init", "device_count", "is_available", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    assert len(take(Gpu(), Gpu()).gpus) == 2


# 15. Three numbers for one process ...


def test_15_allocator_nvml_and_context_side_by_side(monkeypatch):
    torch = pytest.importorskip("torch")
    gpu = Gpu(processes=(Process(pid=os.getpid(), memory=700 * MIB), Process(pid=1)))
    cuda_in_use(monkeypatch, torch, [take(gpu).gpus[0].uuid])
    found = take(gpu)
    (own,) = found.own
    assert (own.allocated_bytes, own.reserved_bytes, own.peak_allocated_bytes) == (
        100 * MIB,
        200 * MIB,
        150 * MIB,
    )
    assert (own.process_bytes, own.context_bytes) == (700 * MIB, 500 * MIB)
    assert "Allocated" in str(found)


@pytest.mark.usefixtures("simulated_cuda")
def test_15_tensors_of_the_simulated_cuda_are_counted():
    torch = pytest.importorskip("torch")
    kept = torch.zeros(1024, device="cuda:1")
    owns = {own.cuda_index: own for own in take(Gpu(), Gpu()).own}
    assert owns[1].allocated_bytes >= kept.nbytes
    assert owns[1].peak_allocated_bytes >= owns[1].allocated_bytes
    assert owns[0].allocated_bytes == 0


def test_15_r117_before_cuda_is_used_the_keys_are_there(monkeypatch):
    pytest.importorskip("torch")
    owns = take(Gpu(), Gpu()).own
    assert [own.cuda_index for own in owns] == [0, 1]
    for own in owns:
        assert own.to_dict() == {
            "cuda_index": own.cuda_index,
            **{
                key: value
                for name in ("allocated", "reserved", "peak_allocated", "process", "context")
                for key, value in {
                    f"{name}_bytes": None,
                    f"{name}_bytes_reason": "cuda_not_initialized",
                }.items()
            },
        }


def test_15_r117_index_text_and_device_name_the_same_gpu():
    torch = pytest.importorskip("torch")
    found = take(Gpu(temperature=1), Gpu(temperature=2))
    for device in (1, "1", "cuda:1", torch.device("cuda:1")):
        assert found.gpu(device).temperature_celsius == 2
    assert found.gpu("cuda").temperature_celsius == 1
    with pytest.raises(devicekit.DeviceSpecError, match=r"`device` is 7, but .* cuda:0, cuda:1"):
        found.gpu(7)


def test_15_without_nvmls_number_there_is_no_context(monkeypatch):
    torch = pytest.importorskip("torch")
    gpu = Gpu(driver_model="WDDM", processes=(Process(pid=os.getpid()),))
    cuda_in_use(monkeypatch, torch, [take(gpu).gpus[0].uuid])
    (own,) = take(gpu).own
    assert (own.allocated_bytes, own.process_bytes) == (100 * MIB, None)
    assert own.reasons["context_bytes"] == "wddm"


# 16. torch's own count ...


def test_16_torchs_count_is_not_asked_for(monkeypatch):
    """On Windows torch looks for a Linux library and falls back to one that makes a context."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", None)
    monkeypatch.setattr(torch.cuda, "device_count", None)
    assert len(take(Gpu(driver_model="TCC")).gpus) == 1


# Unified memory ...


def test_r107_unified_memory_is_a_finding_and_not_an_error():
    refused = {"nvmlDeviceGetMemoryInfo": "NotSupported"}
    (gpu,) = take(Gpu(name="NVIDIA GB10", capability=(12, 1), errors=refused)).gpus
    assert gpu.unified_memory
    assert (gpu.memory_total_bytes, gpu.reasons["memory_total_bytes"]) == (None, "unified_memory")


@pytest.mark.parametrize(
    ("capability", "error", "reason"),
    [((9, 0), "NotSupported", "not_supported"), ((12, 1), "NoPermission", "permission")],
)
def test_r107_other_failures_stay_failures(capability, error, reason):
    (gpu,) = take(Gpu(capability=capability, errors={"nvmlDeviceGetMemoryInfo": error})).gpus
    assert not gpu.unified_memory
    assert gpu.reasons["memory_used_bytes"] == reason


# All of them ...

MACHINES = {
    "plain": ([Gpu()], {}),
    "wddm": ([Gpu(driver_model="WDDM", processes=(Process(pid=7),))], {}),
    "mig": ([mig_gpu()], {}),
    "lost": ([Gpu(), Gpu(lost="GpuIsLost")], {}),
    "old driver": ([Gpu(processes=(Process(pid=7),))], {"driver": "418.39"}),
    "old binding": ([Gpu(processes=(Process(pid=7),))], {"binding": "old"}),
    "no driver": ([], {"init_error": "LibraryNotFound"}),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_null_has_a_reason_and_every_reason_a_sentence(machine):
    gpus, options = MACHINES[machine]
    with FakeNvml(gpus, **options):
        found = snapshot().to_dict()
    assert_reasons(found)
    assert set(codes(found)) <= {*REASONS, *UNAVAILABLE}


def assert_reasons(found):
    for key, value in found.items():
        if value is None:
            assert found[f"{key}_reason"]
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                assert_reasons(each)
