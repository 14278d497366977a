"""Which accelerators can be used, and each reason why one cannot."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from devicekit import compat, driver
from devicekit.driver import Gpu
from devicekit.driver.nvml import ask_nvml
from devicekit.errors import forget_warnings
from devicekit.probe import (
    REASONS,
    Probe,
    accelerator_types,
    cuda,
    device_name,
    known_types,
    probe,
)
from devicekit.testing import simulate
from devicekit.testing.simulation.private import MISSING

A100 = Gpu("NVIDIA A100", "GPU-aaaa-1", (8, 0))
H200 = Gpu("NVIDIA H200", "GPU-bbbb-2", (9, 0))
OLD = Gpu("GeForce GTX 1080", "GPU-cccc-3", (6, 1))

needs_simulation = pytest.mark.skipif(bool(MISSING), reason="this torch is too old to simulate")

NO_SUCH_FILE = "cannot open shared object file: No such file or directory"


def shows(*gpus: Gpu) -> dict:
    """What the child process prints where CUDA shows these GPUs."""
    return {"code": 0, "cuda": 12080, "gpus": [asdict(gpu) for gpu in gpus]}


class FakeNvml:
    """libnvidia-ml as ctypes sees it: functions that fill what they are pointed to."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.shutdowns = 0
        words = {9: b"Driver Not Loaded", 18: b"Driver/library version mismatch"}
        self.nvmlErrorString = lambda code: words.get(code, b"Unknown Error")

    def nvmlInit_v2(self) -> int:
        return self.machine.nvml_error

    def nvmlShutdown(self) -> int:
        self.shutdowns += 1
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: ctypes.Array, size: ctypes.c_uint) -> int:
        buffer.value = b"535.104.05"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version) -> int:
        version._obj.value = self.machine.driver_cuda
        return 0

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(self.machine.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle) -> int:
        handle._obj.value = index.value + 1
        return 15 if index.value in self.machine.lost else 0

    def nvmlDeviceGetName(self, handle, buffer, size) -> int:
        buffer.value = self._gpu(handle).name.encode()
        return 0

    def nvmlDeviceGetUUID(self, handle, buffer, size) -> int:
        buffer.value = self._gpu(handle).uuid.encode()
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor) -> int:
        major._obj.value, minor._obj.value = self._gpu(handle).capability
        return 0

    def _gpu(self, handle: ctypes.c_void_p) -> Gpu:
        return self.machine.gpus[handle.value - 1]


@dataclass
class Machine:
    """A machine to pretend: what the two libraries answer."""

    gpus: tuple[Gpu, ...] = (A100,)
    driver_cuda: int = 12080
    libraries: tuple[str, ...] = ("libcuda.so.1", "libnvidia-ml.so.1")
    nvml_error: int = 0
    lost: tuple[int, ...] = ()
    child: dict | Exception | None = None
    children: int = 0
    nvml: FakeNvml = field(init=False)

    def __post_init__(self) -> None:
        self.nvml = FakeNvml(self)

    def load(self, name: str) -> object:
        if name not in self.libraries:
            raise OSError(f"{name}: {NO_SUCH_FILE}")
        return self.nvml if "nvidia-ml" in name else SimpleNamespace()

    def run_child(self) -> dict:
        self.children += 1
        if self.child is None:
            pytest.fail("asked the driver in a child process, where NVML knows enough")
        if isinstance(self.child, Exception):
            raise self.child
        return self.child


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Machine]]:
    """Pretend a CUDA build of torch on a machine with this driver and these GPUs."""

    def pretend(
        build: str = "12.8",
        archs: tuple[str, ...] = ("sm_80", "sm_90", "compute_90"),
        mask: str | None = None,
        **options: object,
    ) -> Machine:
        fake = Machine(**options)
        cuda.forget()
        monkeypatch.setattr(torch, "__version__", "2.13.0+cu128")
        monkeypatch.setattr(torch.version, "cuda", build)
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
        monkeypatch.setattr(compat, "cuda_arch_list", lambda: archs)
        monkeypatch.setattr(driver, "load_library", fake.load)
        monkeypatch.setattr(driver, "run_child", fake.run_child)
        for name in cuda.MASKS:
            monkeypatch.delenv(name, raising=False)
        if mask is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        return fake

    yield pretend
    cuda.forget()


# --- The reasons, one by one.


def test_the_cpu_is_always_there() -> None:
    assert probe("cpu") == Probe("cpu", 1)
    assert probe("meta") == Probe("meta", 1)


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a CPU-only build of torch")
def test_r083_not_built_for_real() -> None:
    answer = probe("cuda")
    assert (answer.count, answer.reason) == (0, "not_built")
    assert torch.__version__ in answer.sentence
    assert "Torch not compiled with CUDA enabled" in answer.sentence
    assert "pytorch.org" in answer.remedy


def test_usable(machine) -> None:
    fake = machine(gpus=(A100, A100))
    assert probe("cuda") == Probe("cuda", 2)
    assert fake.nvml.shutdowns == 1
    assert cuda.device_name(1) == "NVIDIA A100"
    assert cuda.device_name(2) == ""


def test_names_of_unlike_gpus_come_from_cuda(machine) -> None:
    fake = machine(gpus=(A100, H200), child=shows(H200, A100))
    assert probe("cuda") == Probe("cuda", 2)
    assert fake.children == 0
    assert cuda.device_name(0) == "NVIDIA H200"


def test_no_driver(machine) -> None:
    machine(libraries=())
    answer = probe("cuda")
    assert answer.reason == "no_driver"
    assert "libcuda.so.1" in answer.sentence
    assert "docker run --gpus all" in answer.remedy


def test_no_driver_in_a_container_that_only_has_nvml(machine) -> None:
    machine(libraries=("libnvidia-ml.so.1",))
    assert probe("cuda").reason == "no_driver"


def test_no_driver_when_it_is_not_loaded(machine) -> None:
    machine(nvml_error=9)
    answer = probe("cuda")
    assert answer.reason == "no_driver"
    assert "Driver Not Loaded" in answer.sentence


def test_driver_too_old(machine) -> None:
    machine(build="13.0", driver_cuda=12020)
    answer = probe("cuda")
    assert answer.reason == "driver_too_old"
    assert "535.104.05" in answer.sentence
    assert "CUDA 12.2" in answer.sentence
    assert "CUDA 13.0" in answer.sentence
    assert "CUDA 12" in answer.remedy


@pytest.mark.parametrize(
    ("build", "driver_cuda"), [("12.8", 12020), ("11.8", 12020), ("12", 13000)]
)
def test_an_older_driver_of_the_same_family_is_new_enough(machine, build, driver_cuda) -> None:
    machine(build=build, driver_cuda=driver_cuda)
    assert probe("cuda").count == 1


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        ("", 0),
        ("-1", 0),
        ("7", 0),
        ("0,0", 0),
        ("GPU-ffff", 0),
        ("0", 1),
        ("1,0", 2),
        ("0,-1,1", 1),
        ("0,9,1", 1),
        ("1gpu2,0", 2),
        ("GPU-bbbb", 1),
        ("GPU-aaaa-1,GPU-bbbb-2", 2),
        ("GPU-aaaa-1, GPU-bbbb-2", 1),  # the space: CUDA stops there
        ("GPU-", 0),  # could be either
    ],
)
def test_r080_hidden(machine, mask: str, count: int) -> None:
    machine(gpus=(A100, H200), mask=mask)
    answer = probe("cuda")
    assert answer.count == count
    if count:
        assert answer.reason is None
        return
    assert answer.reason == "hidden"
    assert f"CUDA_VISIBLE_DEVICES={mask!r}" in answer.sentence
    assert "(2)" in answer.sentence
    assert "unset CUDA_VISIBLE_DEVICES" in answer.remedy


def test_a_mig_mask_is_for_the_driver_to_judge(machine) -> None:
    fake = machine(mask="MIG-1234", child=shows(Gpu("A100 MIG 1g.5gb", "GPU-eeee-5", (8, 0))))
    for _ in range(3):
        assert probe("cuda") == Probe("cuda", 1)
        assert cuda.device_name(0) == "A100 MIG 1g.5gb"
    assert fake.children == 1  # once for this mask


def test_a_mask_that_torch_cannot_read_is_for_the_driver_to_judge(machine) -> None:
    fake = machine(mask="0,-", child=shows(A100))
    assert probe("cuda") == Probe("cuda", 1)
    assert fake.children == 1


def test_a_wrong_mig_mask_is_hidden(machine) -> None:
    machine(mask="MIG-9999", child={"code": 100, "words": "no device", "cuda": 12080})
    assert probe("cuda").reason == "hidden"


def test_no_device(machine) -> None:
    machine(gpus=())
    answer = probe("cuda")
    assert answer.reason == "no_device"
    assert "nvidia-smi" in answer.remedy


def test_unsupported_arch(machine) -> None:
    machine(gpus=(OLD,))
    answer = probe("cuda")
    assert answer.reason == "unsupported_arch"
    assert "GeForce GTX 1080 (sm_61)" in answer.sentence
    assert "sm_80 sm_90" in answer.sentence


def test_an_old_gpu_beside_a_good_one_is_for_cuda_to_order(machine) -> None:
    exact = shows(H200, OLD)
    machine(gpus=(OLD, H200), child=exact)
    assert probe("cuda") == Probe("cuda", 2)
    assert cuda.device_name(0) == "NVIDIA H200"


def test_broken_in_the_words_of_the_driver(machine) -> None:
    words = "CUDA_ERROR_UNKNOWN (999): unknown error"
    fake = machine(nvml_error=999, child={"code": 999, "words": words, "cuda": 12080})
    answer = probe("cuda")
    assert answer.reason == "broken"
    assert words in answer.sentence
    fake.child = shows(A100)
    assert probe("cuda").count == 1  # a failure is not kept


def test_broken_after_an_update_of_the_driver(machine) -> None:
    machine(nvml_error=18)
    answer = probe("cuda")
    assert answer.reason == "broken"
    assert "Driver/library version mismatch" in answer.sentence
    assert "restart" in answer.remedy


@pytest.mark.parametrize(
    "error",
    [
        OSError("no more processes"),
        subprocess.TimeoutExpired("python", 60),
        ValueError("unexpected answer []"),
    ],
)
def test_a_child_process_that_fails_is_not_held_against_the_gpu(machine, error) -> None:
    machine(mask="MIG-1234", child=error)
    assert probe("cuda") == Probe("cuda", 1)
    machine(gpus=(OLD, H200), child=error)
    assert probe("cuda") == Probe("cuda", 2)
    assert cuda.device_name(0) == ""
    machine(libraries=("libcuda.so.1",), child=error)
    answer = probe("cuda")
    assert answer.reason == "broken"
    assert str(error) in answer.sentence


def test_a_board_without_nvml_is_asked_through_the_driver(machine) -> None:
    machine(libraries=("libcuda.so.1",), child=shows(Gpu("Orin", "GPU-dddd-4", (8, 7))))
    assert probe("cuda") == Probe("cuda", 1)
    assert cuda.device_name(0) == "Orin"


def test_no_device_without_nvml(machine) -> None:
    machine(libraries=("libcuda.so.1",), child={"code": 100, "words": "", "cuda": 12080})
    assert probe("cuda").reason == "no_device"


def test_a_lost_gpu_does_not_hide_the_others(machine) -> None:
    machine(gpus=(A100, H200), lost=(0,))
    assert probe("cuda").count == 2


def test_a_count_that_cannot_be_true_is_not_counted_to(machine, monkeypatch) -> None:
    fake = machine(child=shows(A100))

    def count(place) -> int:
        place._obj.value = 2**32 - 1
        return 0

    monkeypatch.setattr(fake.nvml, "nvmlDeviceGetCount_v2", count)
    assert ask_nvml().state == "failed"
    assert probe("cuda").count == 1


@pytest.mark.parametrize("build", ["git", "9" * 5000])
def test_a_build_of_no_known_version_is_judged(machine, build: str) -> None:
    machine(build=build)
    assert probe("cuda").reason in (None, "driver_too_old")


def test_an_nvml_without_a_function_is_no_crash(machine, monkeypatch) -> None:
    fake = machine(child=shows(A100))
    monkeypatch.delattr(FakeNvml, "nvmlSystemGetCudaDriverVersion_v2")
    assert probe("cuda").count == 1
    assert fake.children == 1
    assert fake.nvml.shutdowns == 1


# --- What other people put in the place of torch's functions.


def test_r080_available_with_no_device_is_not_usable(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert probe("cuda").count == 0


def test_a_mock_says_that_there_is_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert probe("cuda") == Probe("cuda", 2)
    assert device_name("cuda", 1) == "cuda"


def test_a_mock_says_that_there_is_none(machine, monkeypatch) -> None:
    machine()
    assert probe("cuda").count == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = probe("cuda")
    assert (answer.count, answer.reason) == (0, "broken")


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Torch not compiled with CUDA enabled"),
        RuntimeError("CUDA unknown error"),
        ModuleNotFoundError("No module named 'habana_frameworks'"),
    ],
)
@pytest.mark.parametrize(
    ("type", "module"), [("cuda", torch.cuda), ("xpu", torch.xpu), ("mps", torch.backends.mps)]
)
def test_nothing_that_a_backend_raises_leaks(monkeypatch, type, module, error) -> None:
    def fail() -> bool:
        raise error

    monkeypatch.setattr(module, "is_available", fail)
    answer = probe(type)
    assert answer.reason == "broken"
    assert str(error) in answer.sentence
    assert error.__class__.__name__ in answer.sentence


def test_rocm_is_asked_through_torch(monkeypatch) -> None:
    for name in cuda.MASKS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert probe("cuda").reason == "no_device"
    assert "ROCm" in probe("cuda").sentence
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    assert probe("cuda").reason == "hidden"
    assert "HIP_VISIBLE_DEVICES=''" in probe("cuda").sentence
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert probe("cuda").count == 4


def test_cuda_that_is_initialised_is_asked_itself(machine, monkeypatch) -> None:
    machine(libraries=())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "_ask_torch", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (9, 0))
    assert probe("cuda") == Probe("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (6, 1))
    assert probe("cuda").reason == "unsupported_arch"


@pytest.mark.usefixtures("cuda_is_running")
def test_r078_a_mask_that_comes_too_late_is_said_once(monkeypatch, recwarn) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(cuda, "_mask_at_start", ["0"])
    forget_warnings()
    with pytest.warns(UserWarning, match=r"changed from '0' to '1' after CUDA was initialised"):
        probe("cuda")
    probe("cuda")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.warns(UserWarning, match=r"changed from '0' to unset"):
        probe("cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert probe("cuda").count == 1


@pytest.fixture
def cuda_is_running(machine, monkeypatch) -> None:
    machine()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "_ask_torch", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (9, 0))


# --- The other types.


@pytest.mark.skipif(torch.backends.mps.is_built(), reason="needs a build without MPS")
def test_mps_not_built() -> None:
    assert probe("mps").reason == "not_built"


def test_mps_without_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert probe("mps").reason == "no_device"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert probe("mps") == Probe("mps", 1)


def test_the_name_of_a_backend_that_is_not_initialised_is_its_type() -> None:
    assert device_name("xpu", 0) == "xpu"
    assert device_name("mps", 0) == "mps"
    assert device_name("cpu", 0) == "cpu"


def test_xpu(monkeypatch) -> None:
    assert probe("xpu").reason == "not_built"
    monkeypatch.setattr(torch.xpu, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert probe("xpu").reason == "no_device"
    monkeypatch.setenv("ZE_AFFINITY_MASK", "9")
    assert probe("xpu").reason == "hidden"
    assert "ZE_AFFINITY_MASK='9'" in probe("xpu").sentence
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 3)
    assert probe("xpu") == Probe("xpu", 3)


@pytest.mark.parametrize(
    ("type", "extension"),
    [("npu", "torch_npu"), ("hpu", "habana_frameworks.torch"), ("mlu", "torch_mlu")],
)
def test_a_backend_of_another_package_names_it(type: str, extension: str) -> None:
    answer = probe(type)
    assert answer.reason == "not_built"
    assert f"import {extension}" in answer.remedy


def test_a_type_that_torch_knows_and_has_nothing_for() -> None:
    assert probe("vulkan").reason == "not_built"


def test_every_known_type_has_an_answer() -> None:
    for type in known_types():
        answer = probe(type)
        assert answer.type == type
        assert (answer.count > 0) == (answer.reason is None)
        assert answer.reason is None or answer.reason in REASONS
        assert bool(answer.sentence) == bool(answer.remedy) == (answer.reason is not None)


def test_sentences_end_without_a_full_stop(machine) -> None:
    # They are put together with the remedy into one text.
    machine(gpus=())
    for type in known_types():
        assert not probe(type).sentence.endswith(".")
        assert not probe(type).remedy.endswith(".")


# --- Kernels for a GPU.


@pytest.mark.parametrize(
    ("archs", "capability", "runs"),
    [
        (["sm_80", "sm_90"], (9, 0), True),
        (["sm_80", "sm_86"], (9, 0), False),
        (["sm_80", "compute_80"], (9, 0), True),
        (["sm_80"], (8, 7), True),  # a Jetson: no claim
        (["gfx90a"], (9, 0), True),  # AMD: no claim
        (["sm_80", "sm_130"], (13, 1), True),  # a family newer than the rules: no claim
        ([], (3, 5), True),
        (["sm_80"], None, True),
    ],
)
def test_supports(archs, capability, runs) -> None:
    assert cuda.supports(archs, capability) is runs


# --- compat: each private name of torch is used here.


@needs_simulation
def test_compat_private_backend(simulated_accelerator) -> None:
    assert compat.private_backend() == simulated_accelerator.name
    assert not compat.cuda_is_simulated()
    assert accelerator_types()[0] == simulated_accelerator.name
    assert probe(simulated_accelerator.name) == Probe(simulated_accelerator.name, 2)
    simulated_accelerator.stop()
    assert probe(simulated_accelerator.name).reason == "no_device"
    assert accelerator_types()[0] == "cuda"


@needs_simulation
def test_compat_cuda_is_simulated() -> None:
    with simulate("cuda", count=3):
        assert compat.cuda_is_simulated()
        assert probe("cuda") == Probe("cuda", 3)
        assert accelerator_types()[0] == "cuda"
        assert probe(compat.private_backend()).count == 0
        assert cuda.device_name(0)
    assert not compat.cuda_is_simulated()
    assert probe("cuda").count == 0 or torch.version.cuda is not None


def test_compat_arch_list() -> None:
    assert all(isinstance(arch, str) for arch in compat.cuda_arch_list())
    if torch.version.cuda is None:
        assert compat.cuda_arch_list() == ()


@given(st.text(alphabet="0123456789,-+ aGPU", max_size=12))
def test_compat_masks_never_raise(mask: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", mask)
        visible = cuda._visible((A100, H200, OLD))
    assert visible is not None or "-" in mask or "+" in mask
    visible = visible or ()
    assert set(visible) <= {0, 1, 2}
    assert len(set(visible)) == len(visible)


def test_compat_calls_when_cuda_starts(monkeypatch) -> None:
    queue: list = []
    monkeypatch.setattr(torch.cuda, "_queued_calls", queue)
    called = []
    compat.when_cuda_starts(lambda: called.append(True))
    assert called == []
    for function, _ in queue:  # what torch does at the end of its initialisation
        function()
    assert called == [True]


def test_compat_is_loss() -> None:
    assert compat.is_loss(torch.nn.CrossEntropyLoss())
    assert not compat.is_loss(torch.nn.ReLU())


def test_compat_is_compiled() -> None:
    assert compat.is_compiled(torch.cuda) is torch.backends.cuda.is_built()
    assert compat.is_compiled(torch.mtia) is False
    assert compat.is_compiled(torch.backends) is True  # it does not say


def test_compat_knows_torchs_own_functions(monkeypatch) -> None:
    from unittest import mock

    mps = torch.backends.mps
    own = [(torch.cuda.is_available, torch.cuda), (torch.cuda.device_count, torch.cuda)]
    for function, module in [*own, (mps.is_available, mps)]:
        assert not compat.is_replaced(function, module)
        assert compat.is_replaced(lambda: True, module)
        assert compat.is_replaced(mock.Mock(return_value=True), module)


@pytest.mark.parametrize("name", ["cuda", "xpu", "mps", "hpu", "mtia", "cpu", "meta"])
def test_compat_torch_knows(name: str) -> None:
    assert compat.torch_knows(name)
    assert not compat.torch_knows(name + "x")


def test_accelerators_come_best_first() -> None:
    assert accelerator_types()[0] == "cuda"
    assert "cpu" not in accelerator_types()


# --- Asking has no effect on this process and its children.

_ASK = """
import os, json, sys
import torch
before = dict(os.environ)
if sys.argv[1] == "devicekit":
    from devicekit.device import Device
    from devicekit.probe import probe
    import warnings
    warnings.simplefilter("ignore")
    found = [Device("auto"), Device("cuda"), *Device.available()]
    names = [device.name for device in found]
    reason = probe("cuda").reason
else:
    torch.cuda.is_available()
    reason = None
read, write = os.pipe()
if os.fork() == 0:
    bad = getattr(torch._C, "_cuda_isInBadFork", lambda: False)()
    os.write(write, b"bad" if bad else b"good")
    os._exit(0)
os.wait()
from devicekit import compat
archs = compat.cuda_arch_list()
print(json.dumps({
    "archs": archs,
    "torchs_archs": getattr(torch._C, "_cuda_getArchFlags", str)().split(),
    "child": os.read(read, 10).decode(),
    "initialised": torch.cuda.is_initialized(),
    "environment_kept": dict(os.environ) == before,
    "reason": reason,
    "build": torch.version.cuda,
}))
"""


def ask(python: str, who: str = "devicekit") -> dict:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    for name in cuda.MASKS:
        environment.pop(name, None)
    answer = subprocess.run(
        [python, "-c", _ASK, who], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(answer.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_r056_asking_spoils_no_fork() -> None:
    answer = ask(sys.executable)
    assert answer["child"] == "good"
    assert answer["initialised"] is False
    assert answer["environment_kept"] is True


@needs_simulation
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_r056_asking_about_a_simulated_cuda_spoils_no_fork() -> None:
    # The simulation keeps CUDA's rule that torch's own question spoils it.
    with simulate("cuda"):
        assert probe("cuda").count == 2
        assert cuda.device_name(1)
        assert not torch.cuda.is_initialized()
        assert in_a_child(torch.cuda._is_in_bad_fork) is False
        torch.cuda.is_available()
        assert in_a_child(torch.cuda._is_in_bad_fork) is True


def in_a_child(question: Callable[[], bool]) -> bool:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"yes" if question() else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read, 10)
    os.close(read)
    os.close(write)
    return answer == b"yes"


@pytest.fixture(scope="module")
def cuda_python() -> str:
    """A Python with a CUDA build of torch, on this machine that has no NVIDIA driver."""
    python = os.environ.get("DEVICEKIT_CUDA_PYTHON")
    if not python:
        pytest.skip("DEVICEKIT_CUDA_PYTHON names no Python with a CUDA build of torch")
    return python


@pytest.mark.slow
def test_no_driver_for_real(cuda_python: str) -> None:
    answer = ask(cuda_python)
    assert answer["archs"] == answer["torchs_archs"] != []
    assert answer["build"] is not None
    assert answer["reason"] == "no_driver"
    assert (answer["child"], answer["initialised"]) == ("good", False)
    assert answer["environment_kept"] is True
    # What is at stake: torch's own question does spoil it.
    assert ask(cuda_python, "torch")["child"] == "bad"


@pytest.mark.accelerator
@pytest.mark.skipif(
    torch.version.cuda is None or not os.path.exists("/dev/nvidia0"), reason="needs an NVIDIA GPU"
)
def test_a_real_gpu_agrees_with_torch() -> None:
    answer = ask(sys.executable)
    assert answer["reason"] is None
    assert (answer["child"], answer["initialised"]) == ("good", False)
    exact = driver.ask_driver()
    nvml = ask_nvml()
    assert len(exact.gpus) == probe("cuda").count == torch.cuda.device_count()
    assert exact.cuda == nvml.cuda
    assert {gpu.name for gpu in exact.gpus} <= {gpu.name for gpu in nvml.gpus}
    assert exact.gpus[0].capability == torch.cuda.get_device_capability(0)
    assert cuda.device_name(0) == exact.gpus[0].name == torch.cuda.get_device_name(0)
