"""Every block of docs/interop.md runs with the real library, on three machines."""

import pytest
from interop_page import run_section, sections_with_peers

PEERS = {
    "Lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "transformers' Trainer": ("transformers", "accelerate"),
    "PyTorch Geometric": ("torch_geometric",),
    "tensordict and attrs": ("tensordict", "attrs"),
    "ignite": ("ignite",),
    "torchmetrics": ("torchmetrics",),
    "torchdata": ("torchdata",),
}
ELSEWHERE = ["torchvision", "torchrun", "Hydra"]  # test_torchvision.py, test_interop_launch.py
LIMITS = [("Lightning", "sim")]  # it does not know the name, and takes the CPU

pytestmark = [
    pytest.mark.ecosystem,
    # lightning
    pytest.mark.filterwarnings("ignore:The '.*dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated"),
    # DataParallel, which transformers' Trainer puts around a model on two GPUs
    pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0"),
    # torchdata
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def test_no_section_is_forgotten():
    assert sections_with_peers() == [*PEERS, *ELSEWHERE]


@pytest.mark.parametrize("heading", PEERS)
def test_section(heading, machine, monkeypatch, tmp_path):
    for peer in PEERS[heading]:
        pytest.importorskip(peer, reason=f"docs/interop.md shows {peer}")
    if machine == "sim":
        monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "sim:0")
    monkeypatch.chdir(tmp_path)
    names = run_section(heading)

    assert device_type(heading, names) == ("cpu" if (heading, machine) in LIMITS else machine)


def device_type(heading, names):
    if heading == "Lightning":  # which brings the model back to the CPU after training
        return names["trainer"].strategy.root_device.type
    if heading == "tensordict and attrs":
        return names["moved"].label.device.type
    if heading == "torchdata":
        return names["x"].device.type
    return next(names["model"].parameters()).device.type
