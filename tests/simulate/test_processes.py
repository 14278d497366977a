"""What a forked or spawned process sees of a simulation (R045, R046, R047, R048)."""

import gc
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

from devicekit.testing import Simulation, simulate

REFUSED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method"
)


@pytest.fixture(params=["sim", "cuda"])
def simulation(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    with simulate(request.param) as running:
        yield running


def in_fork(function: Callable[[], object]) -> str:
    """Return what a function returns, or the error it raises, in a forked process."""
    gc.collect()  # a loader that is collected in the child complains about its workers
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(function())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


class OnDevice(Dataset[torch.Tensor]):
    """A dataset whose samples are on a device, or are taken from a tensor that is."""

    def __init__(self, device: str, held: torch.Tensor | None = None) -> None:
        self.device = device
        self.held = held

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.held is not None:
            return self.held[i] * 2
        return torch.full((2,), float(i), device=self.device)


class OnHost(OnDevice):
    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i))


# ------------------------------------------------------------------ fork


def test_forked_process_cannot_use_a_device_that_was_used(simulation: Simulation) -> None:
    x = torch.ones(2, device=f"{simulation.name}:0")
    new = in_fork(lambda: torch.zeros(2, device=f"{simulation.name}:1"))
    assert new == f"RuntimeError: {REFUSED}"
    assert in_fork(lambda: torch.zeros(2).to(simulation.name)) == f"RuntimeError: {REFUSED}"
    assert in_fork(lambda: x + 1) == f"RuntimeError: {REFUSED}"
    assert in_fork(lambda: x.sum().item()) == f"RuntimeError: {REFUSED}"
    assert (x + 1).tolist() == [2, 2]  # the parent goes on


def test_forked_process_may_use_a_device_that_was_not(simulation: Simulation) -> None:
    torch.manual_seed(0)
    found = in_fork(lambda: torch.ones(2, device=f"{simulation.name}:1").sum().item())
    assert found == "2.0"


def test_use_in_another_simulation_is_forgotten() -> None:
    with simulate():
        torch.ones(2, device="sim")
    with simulate():
        assert in_fork(lambda: torch.ones(2, device="sim").sum().item()) == "2.0"


def test_use_before_an_inner_simulation_is_remembered() -> None:
    with simulate():
        torch.ones(2, device="sim")
        with simulate(count=3):
            pass
        assert REFUSED in in_fork(lambda: torch.ones(2, device="sim"))


def test_simulation_started_in_the_forked_process_works(simulation: Simulation) -> None:
    torch.ones(2, device=simulation.name)

    def child() -> float:
        with simulate(simulation.name):
            return torch.ones(2, device=simulation.name).sum().item()

    assert in_fork(child) == "2.0"


def test_forked_process_stays_useless_after_a_simulation_of_its_own() -> None:
    with simulate("cuda"):
        torch.ones(1, device="cuda")

        def child() -> None:
            with simulate("cuda"):
                torch.ones(1, device="cuda")
            torch.ones(1, device="cuda")

        assert in_fork(child) == f"RuntimeError: {REFUSED}"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.cuda.is_available(),
        lambda: torch.cuda.device_count(),
        lambda: torch.cuda.init(),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.get_device_name(),
        lambda: torch.cuda.current_stream(),
        lambda: torch.cuda.synchronize(),
    ],
    ids=["is_available", "device_count", "init", "set_device", "name", "stream", "synchronize"],
)
def test_asking_cuda_poisons_a_later_fork_as_the_driver_does(ask: Callable[[], object]) -> None:
    with simulate("cuda"):
        ask()
        assert REFUSED in in_fork(lambda: torch.zeros(1, device="cuda"))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.manual_seed(0),
        lambda: torch.cuda.manual_seed_all(0),
        lambda: torch.cuda.empty_cache(),
        lambda: torch.cuda.is_initialized(),
        lambda: torch.device("cuda:1"),
        lambda: torch.zeros(1).pin_memory(),
    ],
    ids=["manual_seed", "manual_seed_all", "empty_cache", "is_initialized", "device", "pin"],
)
def test_what_does_not_touch_cuda_poisons_nothing(ask: Callable[[], object]) -> None:
    with simulate("cuda"):
        ask()
        assert in_fork(lambda: torch.ones(2, device="cuda").sum().item()) == "2.0"


def test_forked_process_knows_that_it_is_one() -> None:
    with simulate("cuda"):
        torch.ones(1, device="cuda")
        assert not torch.cuda._is_in_bad_fork()
        assert torch.cuda.is_initialized()
        child = "torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized(), torch.manual_seed(0)"
        assert in_fork(lambda: eval(child)).startswith("(True, False, ")


# ------------------------------------------------------------------ workers that were forked


def test_worker_that_touches_the_device(simulation: Simulation) -> None:
    torch.ones(1, device=simulation.name)
    loader = DataLoader(OnDevice(simulation.name), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(RuntimeError, match=r"Cannot re-initialize CUDA in forked subprocess"):
        list(loader)


def test_worker_that_uses_a_tensor_of_its_parent(simulation: Simulation) -> None:
    held = torch.ones(4, 2, device=simulation.name)
    loader = DataLoader(
        OnDevice(simulation.name, held), num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(RuntimeError, match=r"Cannot re-initialize CUDA in forked subprocess"):
        list(loader)


def test_worker_that_stays_on_the_host(simulation: Simulation) -> None:
    torch.ones(1, device=simulation.name)
    loader = DataLoader(
        OnHost(""), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="fork"
    )
    batches = list(loader)
    assert all(x.is_pinned() for x in batches)
    assert [x.to(f"{simulation.name}:1").sum().item() for x in batches] == [2, 10]


def test_worker_forked_before_first_use_sends_device_tensors(simulation: Simulation) -> None:
    loader = DataLoader(
        OnDevice(f"{simulation.name}:1"),
        batch_size=2,
        num_workers=1,
        multiprocessing_context="fork",
    )
    batches = list(loader)
    assert {x.device for x in batches} == {simulation.devices[1]}
    assert [x.sum().item() for x in batches] == [2, 10]


# ------------------------------------------------------------------ pinning


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "Float"),
        (torch.float64, "Double"),
        (torch.float16, "Half"),
        (torch.bfloat16, "BFloat16"),
        (torch.int64, "Long"),
        (torch.int32, "Int"),
        (torch.uint8, "Byte"),
        (torch.bool, "Bool"),
    ],
    ids=str,
)
def test_r028_device_tensor_cannot_be_pinned(dtype: torch.dtype, name: str) -> None:
    expected = f"cannot pin 'torch.cuda.{name}Tensor' only dense CPU tensors can be pinned"
    with simulate("cuda"), pytest.raises(RuntimeError) as caught:
        torch.ones(1, dtype=dtype, device="cuda").pin_memory()
    assert str(caught.value) == expected


def test_r028_loader_that_pins_device_tensors() -> None:
    with simulate("cuda"):
        loader = DataLoader(OnDevice("cuda"), batch_size=2, pin_memory=True)
        with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.FloatTensor' only dense"):
            list(loader)


# ------------------------------------------------------------------ spawn


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_worker_is_in_the_simulation(simulation: Simulation, method: str) -> None:
    held = torch.arange(8.0, device=f"{simulation.name}:1").view(4, 2)
    loader = DataLoader(
        OnDevice(f"{simulation.name}:1", held),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=method,
    )
    batches = list(loader)
    assert {x.device for x in batches} == {simulation.devices[1]}
    assert torch.cat(batches).tolist() == (held * 2).tolist()


def child(queue: Any) -> None:
    """Send what a spawned process sees."""
    x = torch.ones(2, device="cuda:2")
    queue.put((torch.cuda.device_count(), x, torch.nn.Parameter(x), torch.cuda.mem_get_info()[1]))
    queue.put("sent")


@pytest.mark.slow
def test_spawned_process_gets_the_options() -> None:
    with simulate("cuda", count=3, memory=1 << 20):
        context = torch.multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        count, x, parameter, memory = queue.get(timeout=60)
        assert queue.get(timeout=60) == "sent"
        process.join()
        assert process.exitcode == 0
        assert (count, memory) == (3, 1 << 20)
        assert x.tolist() == [1, 1]
        assert x.device == torch.device("cuda:2")
        assert isinstance(parameter, torch.nn.Parameter)
        assert parameter.requires_grad
        # It came from a process that has ended: only the copy that was sent is needed.
        assert (x + 1).tolist() == [2, 2]


# ------------------------------------------------------------------ pickling between processes


def sent(x: object) -> Any:
    return pickle.loads(ForkingPickler.dumps(x))


def test_tensor_through_a_queue_is_a_copy_on_its_device(simulation: Simulation) -> None:
    x = torch.arange(6.0, device=f"{simulation.name}:1").view(2, 3).t()
    y = sent(x)
    assert y.device == simulation.devices[1]
    assert y.tolist() == x.tolist()
    y.zero_()
    assert x.sum().item() == 15


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool], ids=str)
def test_tensor_of_any_type_through_a_queue(simulation: Simulation, dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype, device=simulation.name)
    assert torch.equal(sent(x), x)


def test_cpu_tensor_through_a_queue_is_shared_as_ever(simulation: Simulation) -> None:
    x = torch.zeros(2)
    sent(x).fill_(1)
    assert x.tolist() == [1, 1]


def test_graph_is_not_sent(simulation: Simulation) -> None:
    x = torch.ones(2, device=simulation.name, requires_grad=True)
    assert sent(x).requires_grad
    with pytest.raises(RuntimeError, match="Cowardly refusing to serialize non-leaf tensor"):
        sent(x * 2)


def test_storage_is_not_sent(simulation: Simulation) -> None:
    storage = torch.ones(2, device=simulation.name).untyped_storage()
    with pytest.raises(RuntimeError, match=r"Cannot pickle \w+ storage; try pickling a \w+ tensor"):
        ForkingPickler.dumps(storage)


def test_index_that_the_receiver_lacks_is_an_error() -> None:
    with simulate(count=3):
        data = ForkingPickler.dumps(torch.ones(1, device="sim:2"))
    with simulate(count=2), pytest.raises(RuntimeError, match="invalid device ordinal"):
        pickle.loads(data)


def test_multiprocessing_is_left_as_it_was() -> None:
    table = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    before = dict(table)
    with simulate():
        assert table[torch.Tensor] is not before[torch.Tensor]
    assert table == before
    assert "__reduce_ex__" not in vars(BaseProcess)
    with warnings.catch_warnings():
        assert multiprocessing.get_context("spawn").Process(target=print).name
