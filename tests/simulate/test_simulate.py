"""`simulate` itself: when it starts, what it says, its options, and what is left after it."""

import gc
import re
import subprocess
import sys

import pytest
import torch
from comparing import on
from torch import nn
from torch.utils.data import TensorDataset

from devicekit import DataLoader
from devicekit.testing import simulate
from devicekit.testing.simulation import private

# ------------------------------------------------------------------ begin and end


def test_importing_it_imports_no_torch():
    code = "import sys, devicekit.testing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plain_call_and_stop():
    running = simulate(count=3)
    try:
        assert running.name == "sim"
        assert running.devices == tuple(torch.device("sim", i) for i in range(3))
        assert "running" in repr(running)
        on("sim:2", torch.ones(2, device=running.devices[2]))
    finally:
        running.stop()
    running.stop()
    assert "stopped" in repr(running)


def answers():
    module = torch.get_device_module("sim")
    return {
        "accelerator": torch.accelerator.current_accelerator(),
        "checked": torch.accelerator.current_accelerator(check_available=True),
        "available": torch.accelerator.is_available(),
        "count": torch.accelerator.device_count(),
        "module": (module.is_available(), module.device_count(), module.is_initialized()),
        "cuda": (torch.cuda.is_available(), torch.cuda.device_count()),
    }


def test_accelerator_inside_and_outside():
    with simulate():
        assert torch.accelerator.current_accelerator() == torch.device("sim")
        assert torch.accelerator.is_available()
        assert torch.accelerator.device_count() == 2
        assert torch.get_device_module("sim").is_available()
        assert not torch.cuda.is_available()
    outside = answers()
    assert outside["module"] == (False, 0, False)
    assert not outside["available"]
    assert outside["count"] == 0
    assert outside["checked"] is None


def test_accelerator_outside_is_what_it_was_before_the_first_simulation():
    code = """
import torch
from devicekit.testing import simulate
def answers():
    a = torch.accelerator
    return (a.current_accelerator(), a.current_accelerator(True), a.is_available(),
            a.device_count(), torch.cuda.is_available(), torch.cuda.device_count())
before = answers()
with simulate():
    pass
assert answers() == before, (before, answers())
torch.manual_seed(0)
torch.randn(2).sum()
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_use_after_the_end_is_one_clear_error():
    with simulate():
        x = torch.ones(2, device="sim")
        layer = nn.Linear(2, 2).to("sim")
    for use in (
        lambda: x + 1,
        lambda: x.cpu(),
        lambda: x.sum(),
        lambda: x[0].item(),
        lambda: layer(x),
        lambda: torch.ones(2, device="sim"),
        lambda: torch.ones(2).to("sim:0"),
        lambda: repr(x),
    ):
        with pytest.raises(RuntimeError, match="the simulated accelerator 'sim' is not active"):
            use()
    with simulate():
        assert (x + 1).sum().item() == 4


def test_another_name_is_refused():
    with simulate(), pytest.raises(RuntimeError, match="torch allows one such backend"):
        simulate("other")


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (ValueError, "count", 0),
        (ValueError, "count", -1),
        (ValueError, "count", 128),
        (TypeError, "count", 1.5),
        (TypeError, "count", "2"),
        (TypeError, "count", True),
        (TypeError, "count", None),
        (ValueError, "memory", 0),
        (TypeError, "memory", 1e9),
        (TypeError, "memory", "1GB"),
        (TypeError, "memory", True),
        (TypeError, "float64", 1),
        (TypeError, "async_copies", None),
        (TypeError, "allow_real", "yes"),
        (TypeError, "name", None),
        (TypeError, "name", torch.device("cpu")),
        (ValueError, "name", ""),
        (ValueError, "name", "a b"),
        (ValueError, "name", "sim:0"),
        (ValueError, "name", "sim2"),
        (ValueError, "name", "CUDA"),
        (ValueError, "name", "cpu"),
        (ValueError, "name", "meta"),
        (ValueError, "name", "mps"),
        (ValueError, "name", "mkldnn"),
        (ValueError, "name", "privateuseone"),
        (ValueError, "name", "nn"),
        (ValueError, "name", "leaf"),
    ],
)
def test_wrong_options_start_nothing(error, name, value):
    with pytest.raises(error, match=f"`{name}` must .*, got {re.escape(repr(value))}"):
        simulate(**{name: value})
    assert not torch.accelerator.is_available()


def test_another_case_of_a_name_has_a_hint():
    with pytest.raises(ValueError, match="did you mean 'cuda'"):
        simulate("CUDA")
    with pytest.raises(ValueError, match="did you mean 'sim'"):
        simulate(" sim")


def test_the_largest_count():
    with simulate(count=127) as running:
        on("sim:126", torch.ones(2, device=running.devices[-1]))


def test_a_wrong_name_is_not_registered():
    code = """
import torch
from devicekit.testing import simulate
for name in ("Sim", "a b", "sim1", "leaf", "nn", "fpga", "", 3):
    try:
        simulate(name)
    except (TypeError, ValueError) as error:
        assert "`name`" in str(error)
    else:
        raise AssertionError(name)
with simulate("my_chip") as running:
    assert str(torch.ones(2, device="my_chip:1").device) == "my_chip:1"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_failure_at_the_last_step_of_the_start_leaves_nothing_running(monkeypatch):
    from devicekit.testing.simulation import processes

    def fail(remembered):
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(processes, "carry_on_use", fail)
        with pytest.raises(OSError, match="no"):
            simulate()
    assert not torch.accelerator.is_available()
    with simulate():
        assert torch.accelerator.is_available()


def test_a_stopped_simulation_does_not_start_again():
    with simulate() as running:
        pass
    with pytest.raises(RuntimeError, match="'sim' was stopped and does not start again"), running:
        pass
    assert not torch.accelerator.is_available()


@pytest.mark.parametrize("name", ["sim", "cuda"])
@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_loader_that_outlives_the_simulation_says_so(name, prefetch):
    data = TensorDataset(torch.arange(20.0))
    with simulate(name):
        batches = iter(DataLoader(data, batch_size=2, device=name, prefetch=prefetch))
        next(batches)
    # Without streams, the move itself says that there is no such device.
    said = r"with .*simulate\(" if prefetch or name == "sim" else "'cuda:0' cannot be used here"
    with pytest.raises(RuntimeError, match=said):
        list(batches)


@pytest.mark.parametrize("available", [True, False])
def test_real_accelerator_outside_is_what_it_was(available):
    code = f"""
import torch
from devicekit.testing import simulate
from devicekit.testing.simulation import private
private.real_accelerator = lambda: torch.device("cuda")
torch.cuda.is_available = lambda: {available}
with simulate(allow_real=True):
    assert torch.accelerator.current_accelerator() == torch.device("sim")
assert torch.accelerator.current_accelerator() == torch.device("cuda")
assert torch.accelerator.is_available() is {available}
checked = torch.accelerator.current_accelerator(check_available=True)
assert checked == (torch.device("cuda") if {available} else None), checked
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_real_accelerator_is_not_hidden(monkeypatch):
    monkeypatch.setattr(private, "backend_name", lambda: "privateuseone")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda *a, **k: torch.device("mps")
    )
    with pytest.raises(RuntimeError, match=r"real accelerator \(mps\).*`allow_real=True`"):
        simulate()


def test_torch_without_the_private_names(monkeypatch):
    monkeypatch.setattr(private, "MISSING", ["torch._C._acc.DeviceGuard"])
    with pytest.raises(NotImplementedError, match=r"needs torch >= .*_acc\.DeviceGuard"):
        simulate()


def test_private_names_are_all_there():
    assert private.MISSING == []


def test_no_private_name_elsewhere():
    """`private.py` is the only module that names `torch._C` or `torch.ops.*._handle`."""
    from pathlib import Path

    package = Path(private.__file__).parent
    for path in package.glob("*.py"):
        if path.name == "private.py":
            continue
        for line in path.read_text().splitlines():
            code = line.split("#")[0]
            assert "torch._C." not in code or path.name in ("rng.py",), f"{path.name}: {line}"
            assert "._handle" not in code, f"{path.name}: {line}"


# ------------------------------------------------------------------ float64=False


def test_without_float64():
    with simulate(float64=False):
        x = torch.ones(2, device="sim")
        for make in (
            lambda: torch.ones(2, dtype=torch.float64, device="sim"),
            lambda: torch.ones(2, dtype=torch.float64).to("sim"),
            x.double,
            lambda: torch.ones(2, dtype=torch.complex128, device="sim"),
            lambda: nn.Linear(2, 2).double().to("sim"),
        ):
            with pytest.raises(TypeError, match="Cannot convert a SIM Tensor to float64 dtype"):
                make()
        assert (x.cpu().double() + 1).dtype == torch.float64
        on("sim:0", x.half(), nn.Linear(2, 2).to("sim").weight)
    with simulate():
        assert torch.ones(2, dtype=torch.float64, device="sim").dtype == torch.float64


# ------------------------------------------------------------------ memory=


def test_out_of_memory():
    with simulate(memory=1 << 20):
        module = torch.get_device_module("sim")
        x = torch.zeros(128, 1024, device="sim")  # half of it
        with pytest.raises(
            torch.OutOfMemoryError, match=r"sim out of memory\. Tried to allocate 1024\.00 KiB"
        ):
            torch.zeros(256, 1024, device="sim")
        with pytest.raises(torch.OutOfMemoryError, match=r"512\.00 KiB is free"):
            torch.cat([x, x, x])
        assert module.mem_get_info() == (1 << 19, 1 << 20)
        y = torch.zeros(128, 1024, device="sim")
        with pytest.raises(torch.OutOfMemoryError):
            x + y
        torch.zeros(256, 1024, device="sim:1")
        del y
        assert (x + x).shape == x.shape
        x.add_(1)
    with simulate():
        torch.zeros(1024, 1024, device="sim")


def test_out_of_memory_before_the_cpu_allocates():
    with simulate(memory=1 << 40), pytest.raises(torch.OutOfMemoryError, match=r"16384\.00 GiB"):
        torch.empty(1 << 42, device="sim")


def test_out_of_memory_in_backward_and_after():
    with simulate(memory=1 << 20):
        x = torch.ones(40_000, device="sim", requires_grad=True)
        with pytest.raises(torch.OutOfMemoryError):
            torch.cat([x * 2, x * 3, x * 4]).exp().sum().backward()
        gc.collect()
        assert torch.get_device_module("sim").memory_allocated() <= 4 * 40_000
        (x[:10] * 2).sum().backward()


def test_memory_counts_live_bytes():
    with simulate():
        module = torch.get_device_module("sim")
        before = module.memory_allocated()
        module.reset_peak_memory_stats()
        x = torch.zeros(1000, device="sim")
        view, peak = x[10:], x * 2
        assert module.memory_allocated() - before == 8000
        del peak
        assert module.memory_allocated() - before == 4000
        assert module.max_memory_allocated() - before == 8000
        assert module.memory_stats()["allocated_bytes.all.peak"] == before + 8000
        assert torch.accelerator.memory_allocated() == before + 4000
        del x
        assert module.memory_allocated() - before == 4000
        del view
        assert module.memory_allocated() == before
        module.empty_cache()
        module.reset_peak_memory_stats()
        assert module.max_memory_allocated() == before
        assert module.memory_allocated(1) == 0


def test_training_leaks_nothing():
    with simulate():
        module = torch.get_device_module("sim")
        model = nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 8)).to("sim")
        x = torch.randn(3, 2, 8, device="sim")

        def step():
            model(x)[0].sum().backward()
            model.zero_grad()
            return module.memory_allocated()

        gc.disable()
        try:
            step()
            assert step() == step()
        finally:
            gc.enable()
