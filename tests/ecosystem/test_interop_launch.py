"""What docs/interop.md says of torchrun and Hydra: its programs run as a user runs them."""

import re
import subprocess
import sys

import pytest
import torch
from interop_page import assert_said, program, yaml_block

from devicekit import Device

pytestmark = [pytest.mark.ecosystem]

SIMULATED = """
import runpy, sys
from devicekit.testing import simulate
name, sys.argv = sys.argv[1], sys.argv[2:]
with simulate(name):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def launch(folder, *command):
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result


# ------------------------------------------------- torchrun

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the fallback needs a machine without CUDA")
def test_torchrun_without_a_gpu_falls_back_and_shares_the_data(tmp_path):
    (tmp_path / "train.py").write_text(program("torchrun"))
    result = launch(tmp_path, *TORCHRUN, "train.py")

    # Two processes write to one pipe: their lines may run together.
    lines = sorted(re.findall(r"rank \d: cpu, \d+ of \d+ samples", result.stdout))
    assert lines == [f"rank {rank}: cpu, 16 of 32 samples" for rank in range(2)]
    warnings = re.findall(r"DeviceFallbackWarning: .*", result.stderr)
    assert len(warnings) == 2  # one for each rank
    assert all("Fix" in warning for warning in warnings)


@pytest.mark.parametrize("count", [1, 2])
def test_torchrun_gives_each_rank_its_card(count, monkeypatch, simulated_cuda):
    monkeypatch.setenv("LOCAL_RANK", str(count - 1))
    assert Device("cuda") == f"cuda:{count - 1}"


def test_simulated_devices_have_no_collectives(simulated_accelerator):
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        with pytest.raises(RuntimeError, match="No backend type") as caught:
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, device="sim"))
    finally:
        torch.distributed.destroy_process_group()
    assert_said(f"RuntimeError: {caught.value}")


# ------------------------------------------------- Hydra


@pytest.fixture
def app(tmp_path):
    pytest.importorskip("hydra", reason="docs/interop.md shows hydra")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(yaml_block("Hydra"))
    (tmp_path / "app.py").write_text(program("Hydra"))
    (tmp_path / "simulated.py").write_text(SIMULATED)
    return tmp_path


@pytest.mark.slow
def test_hydra_app(app):
    # One process for all: it runs the app on each of the devices.
    sweep = ("--multirun", "device=auto,cpu,cuda:1", "hydra.sweep.dir=runs")
    result = launch(app, sys.executable, "simulated.py", "cuda", "app.py", *sweep)

    assert re.findall("ran on (.*)", result.stdout) == ["cuda:0", "cpu", "cuda:1"]


def test_hydra_instantiates_a_device(simulated_accelerator):
    utils = pytest.importorskip("hydra.utils", reason="docs/interop.md shows hydra")
    device = {"_target_": "devicekit.Device", "spec": "auto"}
    assert utils.instantiate(device) == Device("sim:0")
    layer = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 1, "device": device}
    assert utils.instantiate(layer).weight.device == torch.device("sim:0")


@pytest.mark.parametrize("spec", ["auto", "sim:1", 1, None])
def test_a_config_holds_a_spec(spec, simulated_accelerator):
    omegaconf = pytest.importorskip("omegaconf", reason="docs/interop.md shows hydra")
    config = omegaconf.OmegaConf.create({"device": spec})
    assert Device(config.device) == Device(spec)
    config.device = str(Device(config.device))
    assert omegaconf.OmegaConf.to_container(config) == {"device": str(Device(spec))}


def test_a_config_takes_no_device_itself():
    omegaconf = pytest.importorskip("omegaconf", reason="docs/interop.md shows hydra")
    config = omegaconf.OmegaConf.create({"device": "auto"})
    with pytest.raises(omegaconf.errors.UnsupportedValueType) as caught:
        config.device = Device("cpu")
    assert_said(f"{type(caught.value).__name__}: {str(caught.value).splitlines()[0]}")
