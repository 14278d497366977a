"""Saving, loading, pickling, pinning and loaders."""

import io
import pickle
import subprocess
import sys
import threading
import time

import pytest
import torch
from comparing import close, on
from torch import nn
from torch.utils.data import DataLoader, Dataset

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def there(*size, **options):
    return torch.ones(*size, device=DEVICE, **options)


def through_file(data, **options):
    buffer = io.BytesIO()
    torch.save(data, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_load_where_it_was():
    loaded = through_file({"w": torch.arange(3.0, device="sim:1")})
    on("sim:1", loaded["w"])
    close(loaded["w"], torch.arange(3.0))


def test_load_on_the_cpu():
    state = nn.Linear(2, 2).to(DEVICE).state_dict()
    loaded = through_file(state, map_location="cpu", weights_only=True)
    on("cpu", loaded["weight"])
    assert type(loaded["weight"]) is torch.Tensor


def test_load_on_the_device():
    for where in (DEVICE, torch.device(DEVICE), {"cpu": DEVICE}):
        on(DEVICE, through_file({"w": torch.arange(3.0)}, map_location=where)["w"])


def test_load_on_another_device():
    on("sim:1", through_file(there(2), map_location={"sim:0": "sim:1"}))


def test_a_process_without_the_simulation_cannot_load(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"w": torch.arange(3.0, device=DEVICE)}, path)
    code = (
        f"import torch\n"
        f"print(torch.load({str(path)!r}, map_location='cpu')['w'].tolist())\n"
        f"torch.load({str(path)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[0.0, 1.0, 2.0]"
    assert "don't know how to restore data location" in done.stderr


def test_optimizer_and_parameter():
    layer = nn.Linear(2, 2).to(DEVICE)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(there(1, 2)).sum().backward()
    optimizer.step()
    data = {"m": layer.state_dict(), "o": optimizer.state_dict(), "p": layer.weight}
    loaded = through_file(data, weights_only=True)
    on(DEVICE, loaded["m"]["weight"], loaded["p"], loaded["o"]["state"][0]["exp_avg"])
    assert isinstance(loaded["p"], nn.Parameter)


def test_shared_storage_stays_shared():
    x = torch.arange(6.0, device=DEVICE)
    a, b = through_file([x, x[2:4]])
    a[2] = 99.0
    assert b[0].item() == 99.0


def test_pickle():
    on(DEVICE, pickle.loads(pickle.dumps(torch.arange(3.0, device=DEVICE))))


def test_whole_module():
    on(DEVICE, through_file(nn.Linear(2, 2).to(DEVICE), weights_only=False).weight)


def test_storage_copies():
    storage = there(3).untyped_storage()
    assert storage.clone().device == torch.device(DEVICE)
    assert storage.cpu().device.type == "cpu"
    assert storage.cpu().sim(1).device == torch.device("sim:1")
    assert there(2).share_memory_().device == torch.device(DEVICE)


# ------------------------------------------------------------------ pinned memory


def test_pin_memory():
    x = torch.ones(3)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned(), pinned[1:].is_pinned()) == (False, True, True)
    assert pinned.pin_memory() is pinned
    on("cpu", pinned)
    on(DEVICE, pinned.to(DEVICE, non_blocking=True))


@pytest.mark.parametrize("name", ["zeros", "empty", "ones", "rand"])
def test_pinned_factories(name):
    assert getattr(torch, name)(2, pin_memory=True).is_pinned()
    assert not getattr(torch, name)(2).is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        getattr(torch, name)(2, pin_memory=True, device=DEVICE)


def test_what_cannot_be_pinned():
    with pytest.raises(RuntimeError, match=r"^cannot pin 'torch\.sim\.FloatTensor' only dense CPU"):
        there(2).pin_memory()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.eye(2).to_sparse().pin_memory()


# ------------------------------------------------------------------ loaders


class Rows(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        return {"x": torch.full((4,), float(i)), "y": i % 3}


class OnDevice(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.full((2,), float(i), device=DEVICE)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
def test_loader(workers, pin):
    total, threads = 0.0, threading.active_count()
    for batch in DataLoader(
        Rows(), batch_size=4, num_workers=workers, pin_memory=pin, shuffle=True
    ):
        assert batch["x"].is_pinned() == batch["y"].is_pinned() == pin
        moved = batch["x"].to(DEVICE, non_blocking=pin)
        on(DEVICE, moved)
        total += moved.sum().item()
    assert total == 4 * sum(range(16))
    deadline = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.01)  # the threads of queues and pinning end by themselves
    assert threading.active_count() == threads


@pytest.mark.slow
def test_loader_with_spawned_workers():
    loader = DataLoader(Rows(), batch_size=8, num_workers=1, multiprocessing_context="spawn")
    assert sum(b["x"].to(DEVICE).sum().item() for b in loader) == 4 * sum(range(16))


def test_dataset_on_the_device():
    for batch in DataLoader(OnDevice(), batch_size=2):
        on(DEVICE, batch)
