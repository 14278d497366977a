"""Worker processes: accelerator tensors in them, how they start, how they end, what is left."""

import errno
import functools
import gc
import itertools
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

import devicekit
from devicekit import (
    DataLoader,
    DeviceError,
    DeviceMismatchError,
    PinMemoryError,
    WorkerDeviceError,
)
from devicekit.loader import starting
from devicekit.loader.faults import device_fault, explained, shortage_ahead
from devicekit.loader.workers import held_on_accelerator

TorchLoader = torch.utils.data.DataLoader
METHODS = ["fork", pytest.param("forkserver", marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves a process, a thread or a file in shared memory behind."""
    before = left_over()
    yield
    gc.collect()  # an exception and its frames refer to each other
    deadline = time.monotonic() + 5
    while left_over() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left_over() == before


def left_over():
    files = [name for name in sorted(os.listdir("/dev/shm")) if is_ours(name)]
    return len(multiprocessing.active_children()), threading.active_count(), files


def is_ours(name):
    """Whether a file in shared memory was made by this process, a child of it, or one now dead."""
    found = re.match(r"torch_(\d+)_", name)
    if found is None:
        return False
    try:
        status = Path(f"/proc/{found[1]}/status").read_text()
    except OSError:
        return True
    return str(os.getpid()) in (found[1], re.search(r"PPid:\s+(\d+)", status)[1])


class Numbers(Dataset):
    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"n": torch.tensor(index)}


def numbers(batches):
    return [int(n) for batch in batches for n in batch["n"]]


def until_error(loader):
    got = []
    try:
        for batch in loader:
            got += numbers([batch])
    except Exception as error:
        return got, error
    raise AssertionError(f"no error after {got}")


@pytest.fixture
def said():
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        # Python 3.12 and newer say so of every fork where a thread runs, as one does under xdist.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        yield messages


# ------------------------------------------------- accelerator tensors, held by the dataset


def on_sim(count=4):
    return TensorDataset(torch.arange(float(count), device="sim:0"), torch.arange(count))


HOLDERS = {
    "itself": lambda: on_sim(),
    "subset": lambda: Subset(on_sim(), [0, 1, 2, 3]),
    "concatenation": lambda: ConcatDataset([on_sim(2), on_sim(2)]),
    "deep": lambda: Subset(Subset(Subset(ConcatDataset([on_sim()]), [0, 1]), [0, 1]), [0, 1]),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_r045_a_dataset_on_the_device_is_loaded_in_the_main_process(
    holder, simulated_accelerator, said, monkeypatch
):
    monkeypatch.setattr(multiprocessing.Process, "start", None)  # no worker is started
    loader = DataLoader(holder(), 2, num_workers=2, device="sim")

    for _ in range(2):
        assert torch.cat([batch[1] for batch in loader]).sort().values.tolist()[-1] >= 1
    texts = [str(each.message) for each in said if "worker" in str(each.message)]
    assert len(texts) == 1
    assert f"`{type(loader.dataset).__name__}[0][0]` is on sim:0" in texts[0]
    assert loader.num_workers == 2


def test_r045_or_it_is_an_error(simulated_accelerator):
    loader = DataLoader(on_sim(), 2, num_workers=2, device="sim", on_device_data="error")

    with pytest.raises(WorkerDeviceError) as caught:
        iter(loader)
    text = str(caught.value)
    assert "`TensorDataset[0][0]` is on sim:0" in text
    assert "`num_workers` is 2" in text
    # Who searches for torch's words finds this one.
    for words in ("Cannot re-initialize CUDA in forked subprocess", "801", "Producer process"):
        assert words in text


class HoldsWhatItNeverGives(Numbers):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(1, device="sim:1")


def test_r045_an_attribute_on_the_device_is_named(simulated_accelerator, said):
    settings = {"num_workers": 1, "device": "sim"}

    assert numbers(DataLoader(HoldsWhatItNeverGives(), 4, **settings)) == list(range(12))
    assert "HoldsWhatItNeverGives: `dataset.mean` is on sim:1" in str(said[0].message)
    with pytest.raises(WorkerDeviceError, match=r"`dataset\.mean` is on sim:1"):
        iter(DataLoader(HoldsWhatItNeverGives(), on_device_data="error", **settings))


def test_a_big_index_is_not_walked(simulated_accelerator):
    data = Numbers()
    data.files = [("path", {"boxes": [0] * 9})] * 1_000_000
    data.self = data
    start = time.perf_counter()
    assert held_on_accelerator(data) is None
    assert time.perf_counter() - start < 0.5
    data.late = torch.zeros(1, device="sim")
    assert held_on_accelerator(data).path == "dataset.late"


# ------------------------------------------------- accelerator tensors, made in the worker


class MovesFrom(Numbers):
    """Gives tensors on a device from one index on, wherever it runs."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    def __getitem__(self, index):
        device = "sim:0" if index >= self.start else "cpu"
        return {"n": torch.tensor(index), "pair": [0, torch.ones(2).to(device)]}


class RaisesInWorker(Numbers):
    """Says in a worker what CUDA says there."""

    def __init__(self, text, start=0):
        super().__init__()
        self.text = text
        self.start = start

    def __getitem__(self, index):
        if index >= self.start and get_worker_info() is not None:
            raise RuntimeError(self.text)
        return super().__getitem__(index)


@pytest.mark.parametrize("start", [0, 6])
@pytest.mark.parametrize("method", METHODS)
def test_r046_tensors_moved_in_a_worker_are_loaded_in_the_main_process(
    start, method, simulated_accelerator, said
):
    loader = DataLoader(
        MovesFrom(start), 2, num_workers=2, multiprocessing_context=method, device="sim"
    )

    assert numbers(loader) == list(range(12))  # nothing lost, nothing twice
    assert numbers(loader) == list(range(12))
    assert len(said) == 1, [str(each.message) for each in said]
    assert f"`MovesFrom[{start}]['pair'][1]` is on sim:0" in str(said[0].message)
    assert said[0].filename == __file__


class MovesAList(Numbers):
    def __getitem__(self, index):
        return [torch.tensor(index), torch.ones(2).to("sim:0" if index == 3 else "cpu")]


def test_r046_a_sample_that_is_a_list_is_not_a_batch(simulated_accelerator, said):
    loader = DataLoader(
        MovesAList(), None, num_workers=1, multiprocessing_context="fork", device="sim"
    )

    assert [int(batch[0]) for batch in loader] == list(range(12))
    assert "`MovesAList[3][1]` is on sim:0" in str(said[0].message)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 6])
def test_r046_or_they_are_an_error_at_their_place(start, simulated_accelerator):
    loader = DataLoader(
        MovesFrom(start), 2, num_workers=2, device="sim", on_device_data="error", prefetch=2
    )
    got, error = until_error(loader)

    assert got == list(range(start))
    assert isinstance(error, WorkerDeviceError)
    assert f"`MovesFrom[{start}]['pair'][1]` is on sim:0" in str(error)


class OnCuda(Numbers):
    def __getitem__(self, index):
        return {"n": torch.tensor(index).cuda()}


@pytest.fixture
def cuda(simulated_cuda):
    torch.zeros(1, device="cuda")


def test_r028_r045_what_torchs_loader_says_of_cuda_tensors(cuda):
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(TorchLoader(OnCuda(), num_workers=1))
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch\.cuda\.LongTensor' only dense CPU"):
        list(TorchLoader(OnCuda(), pin_memory=True))


def test_r028_r045_ours_gives_the_batches(cuda, said):
    workers = {"num_workers": 1, "multiprocessing_context": "fork"}
    for settings in (workers, {"pin_memory": True}):
        loader = DataLoader(OnCuda(), 4, device="cuda", **settings)
        assert numbers(loader) == list(range(12))
    assert "`OnCuda[0]['n']` is on cuda:0" in str(said[0].message)
    assert all("cuda:0" in str(each.message) for each in said)


def test_r045_or_explains_cudas_own_error(cuda):
    loader = DataLoader(
        OnCuda(), num_workers=1, multiprocessing_context="fork", on_device_data="error"
    )
    with pytest.raises(WorkerDeviceError, match=r"`OnCuda\[0\]\['n'\]` is on cuda:0") as caught:
        list(loader)
    assert "Cannot re-initialize CUDA in forked subprocess" in str(caught.value.__cause__)


TEXTS = [
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method",
    "cuda runtime error (801) : operation not supported at ..\\torch/csrc/generic/StorageShar",
    "CUDA error: operation not supported",
    "CUDA error: initialization error\nCUDA kernel errors might be asynchronously reported",
    "Producer process has been terminated before all shared CUDA tensors released.",
    "CUDA error: invalid device pointer",
    "cuda runtime error (17) : invalid device pointer at /pytorch/torch/csrc/generic/StorageSh",
    "_share_fd_: only available on CPU",
]


@pytest.mark.parametrize("text", TEXTS)
def test_r045_r047_r049_what_cuda_says_in_a_worker(text, said):
    settings = {"batch_size": 2, "num_workers": 2, "device": "cpu"}

    assert numbers(DataLoader(RaisesInWorker(text, 5), **settings)) == list(range(12))
    assert len(said) == 1
    assert "RaisesInWorker[4], or a sample beside it," in str(said[0].message)
    assert device_fault(RuntimeError(text)) in str(said[0].message)

    loader = DataLoader(RaisesInWorker(text, 5), on_device_data="error", **settings)
    batches = iter(loader)
    assert numbers([next(batches), next(batches)]) == [0, 1, 2, 3]
    with pytest.raises(WorkerDeviceError) as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert text.splitlines()[0] in str(caught.value.__cause__)


@pytest.mark.parametrize(
    "text", ["CUDA out of memory. Tried to allocate 2 GiB", "shape '[2]' is invalid", "801"]
)
def test_other_errors_of_a_worker_are_not_relabelled(text):
    with pytest.raises(RuntimeError, match="Caught RuntimeError in DataLoader worker") as caught:
        list(DataLoader(RaisesInWorker(text), num_workers=1, device="cpu"))
    assert type(caught.value) is RuntimeError


def test_r046_a_collate_fn_that_moves_the_batch(simulated_accelerator, said):
    def collate(samples):
        return {"n": torch.stack([sample["n"] for sample in samples]).to("sim:1")}

    loader = DataLoader(
        Numbers(),
        4,
        num_workers=1,
        multiprocessing_context="fork",
        collate_fn=collate,
        device="sim",
    )
    assert numbers(loader) == list(range(12))
    assert [str(each.message) for each in said if "worker" in str(each.message)] != []


class Moves:
    """Moves itself."""

    def __init__(self, n):
        self.n = n

    def to(self, device):
        return Moves(self.n.to(device))


def on_sim_if_asked_to(samples):
    return Moves(torch.tensor([sample["n"] for sample in samples])).to("sim")


def test_r046_a_batch_that_moves_itself_is_looked_into(simulated_accelerator, said):
    loader = DataLoader(
        Numbers(4),
        4,
        num_workers=1,
        multiprocessing_context="fork",
        collate_fn=on_sim_if_asked_to,
        device="sim",
    )
    (batch,) = loader
    assert batch.n.tolist() == [0, 1, 2, 3]
    assert "Numbers: `batch.n` is on sim:0" in str(said[0].message)


class MovingStream(IterableDataset):
    def __init__(self, start):
        self.start = start

    def __iter__(self):
        for index in range(6):
            device = "sim:0" if index >= self.start else "cpu"
            yield {"n": torch.tensor(index, device=device)}


class Mixed(Numbers):
    """One sample is on another device than the others."""

    def __init__(self, odd, others, place):
        super().__init__()
        self.odd, self.others, self.place = odd, others, place

    def __getitem__(self, index):
        here = torch.tensor(index)
        there = here.to(self.place)
        return {"n": there if (index == self.odd) == (self.others == "cpu") else here}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("others", ["cpu", "sim:0"])
def test_samples_of_one_batch_on_several_devices_are_named(workers, others, simulated_accelerator):
    loader = DataLoader(Mixed(7, others, "sim:0"), 3, num_workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it loads in the main process
        got, error = until_error(loader)
    odd = "sim:0" if others == "cpu" else "cpu"
    assert got == [0, 1, 2, 3, 4, 5]
    assert type(error) is DeviceMismatchError
    assert str(error) == (
        "expected all tensors of a batch to be on the same device, but "
        f"`Mixed[6]['n']` is on {others} and `Mixed[7]['n']` is on {odd}\n"
        "  fix: keep the tensors of the dataset on the CPU, the loader moves the batches to the "
        "device"
    )
    assert "same device" in str(error.__cause__)


def test_other_errors_of_collating_mixed_samples_keep_their_type(simulated_accelerator):
    def collate(samples):
        raise RuntimeError("out of ideas")

    loader = DataLoader(Mixed(1, "cpu", "sim:0"), 3, collate_fn=collate)
    with pytest.raises(RuntimeError, match=r"^out of ideas$") as caught:
        next(iter(loader))
    assert type(caught.value) is RuntimeError


def test_an_iterable_dataset_begins_again_in_the_main_process(simulated_accelerator, said):
    loader = DataLoader(
        MovingStream(0), 2, num_workers=1, multiprocessing_context="fork", device="sim"
    )

    assert numbers(loader) == list(range(6))
    assert "MovingStream: `sample['n']`, in sample 0 of a batch, is on sim:0" in str(
        said[0].message
    )


def test_an_iterable_dataset_cannot_change_over_in_the_middle(simulated_accelerator):
    loader = DataLoader(
        MovingStream(3), 2, num_workers=1, multiprocessing_context="fork", device="sim"
    )
    batches = iter(loader)

    assert numbers([next(batches)]) == [0, 1]
    with pytest.raises(WorkerDeviceError, match="MovingStream"):
        next(batches)


def test_batches_out_of_order_cannot_change_over_in_the_middle(simulated_accelerator):
    loader = DataLoader(
        MovesFrom(6),
        2,
        num_workers=1,
        multiprocessing_context="fork",
        device="sim",
        in_order=False,
    )
    batches = iter(loader)

    assert numbers([next(batches) for _ in range(3)]) == list(range(6))
    with pytest.raises(WorkerDeviceError, match="MovesFrom"):
        next(batches)


class Counts(Numbers):
    loaded = 0

    def __getitem__(self, index):
        type(self).loaded += 1
        return {"n": torch.tensor(index)}


def test_no_sample_is_loaded_in_the_main_process_to_look_at_it(monkeypatch):
    monkeypatch.setattr(Counts, "loaded", 0)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    loader = DataLoader(Counts(), 2, num_workers=1, device="cpu")
    torch.manual_seed(0)
    list(TorchLoader(Numbers(), 2, num_workers=1))
    theirs = torch.get_rng_state()
    torch.set_rng_state(state)

    assert numbers(loader) == list(range(12))
    assert Counts.loaded == 0
    assert torch.equal(torch.get_rng_state(), theirs)


# ------------------------------------------------- how workers start


class Transformed(Numbers):
    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(super().__getitem__(index))


class Steps:
    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, sample):
        return functools.reduce(lambda value, step: step(value), self.steps, sample)


def same(sample):
    return sample


UNPICKLABLE = {
    "dataset.transform": ({"dataset": Transformed(lambda sample: sample)}, "a lambda"),
    "dataset.transform.steps[1]": (
        {"dataset": Transformed(Steps(same, lambda sample: sample))},
        "a lambda",
    ),
    "dataset.lock": ({"dataset": Numbers(), "lock": threading.Lock()}, "of type lock"),
    "collate_fn": ({"collate_fn": lambda samples: samples}, "a lambda"),
    "collate_fn.func": ({"collate_fn": functools.partial(lambda samples: samples)}, "a lambda"),
    "worker_init_fn": ({"worker_init_fn": lambda worker: None}, "a lambda"),
}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("path", UNPICKLABLE)
def test_r051_what_cannot_be_pickled_is_named(path, method):
    settings, kind = UNPICKLABLE[path]
    settings = dict(settings)
    data = settings.pop("dataset", Numbers())
    if "lock" in settings:
        data.lock = settings.pop("lock")

    loader = DataLoader(
        data, num_workers=1, multiprocessing_context=method, device="cpu", **settings
    )
    with pytest.raises(pickle.PicklingError) as caught:
        iter(loader)
    assert f"`{path}` is {kind}" in str(caught.value)
    assert method in str(caught.value)
    assert 'multiprocessing_context="fork"' in str(caught.value)


class Shares(Numbers):
    """Holds what can be sent to a worker, but pickled in no other way."""

    def __init__(self):
        super().__init__()
        self.lock = multiprocessing.get_context("spawn").Lock()
        self.tensor = torch.arange(12)
        self.function = same

    def __getitem__(self, index):
        with self.lock:
            return {"n": self.tensor[index]}


@pytest.mark.slow
def test_r051_what_can_only_be_sent_while_a_worker_starts_passes():
    loader = DataLoader(Shares(), 4, num_workers=1, multiprocessing_context="spawn", device="cpu")

    assert numbers(loader) == list(range(12))


class Method(Numbers):
    """Says in which kind of process it runs."""

    def __getitem__(self, index):
        return type(multiprocessing.current_process()).__name__


def first_process(**settings):
    batches = iter(DataLoader(Method(), None, num_workers=1, **settings))
    return next(batches)


def test_the_platforms_own_start_method_is_used_without_an_accelerator():
    assert first_process(device="cpu") == "ForkProcess"


@pytest.mark.slow
def test_a_fork_server_is_used_once_an_accelerator_was_initialised(
    simulated_accelerator, monkeypatch
):
    # The main module is not that of a user: under xdist it cannot be imported.
    monkeypatch.setattr(starting, "_main_can_be_imported", lambda: True)
    assert first_process(device="sim") == "ForkServerProcess"
    assert first_process(device="cpu") == "ForkServerProcess"
    assert first_process(device="sim", multiprocessing_context="fork") == "ForkProcess"
    assert first_process(device="sim", worker_init_fn=lambda worker: None) == "ForkProcess"


@pytest.mark.parametrize(
    ("main", "importable"),
    [
        ("print()", False),
        ("if __name__ == '__main__':\n    print()", True),
        ("import sys\nif '__main__' == __name__:\n    sys.exit()", True),
        ("if __name__ == 'other':\n    print()", False),
        ("def broken(", False),
    ],
)
def test_a_script_without_a_guard_is_not_run_again(main, importable, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(main)
    module = type(sys)("__main__")
    module.__file__, module.__spec__ = str(script), None
    monkeypatch.setitem(sys.modules, "__main__", module)
    starting._main_can_be_imported.cache_clear()
    try:
        assert starting._main_can_be_imported() is importable
    finally:
        starting._main_can_be_imported.cache_clear()


@pytest.mark.slow
def test_classes_of_a_notebook_go_on_to_work_beside_an_accelerator():
    program = """
        import torch
        from devicekit import DataLoader
        from devicekit.testing import simulate

        class Cell(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return index

        with simulate():
            print([x.tolist() for x in DataLoader(Cell(), 2, num_workers=1, device="sim")])
    """
    assert run(program) == "[[0, 1], [2, 3]]"


def run(program, **settings):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(Path(devicekit.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        **settings,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ------------------------------------------------- how they end


class Deadly(Numbers):
    """Kills the worker that loads one sample."""

    def __init__(self, index, deadly=None):
        super().__init__()
        self.index = index
        self.deadly = deadly

    def __getitem__(self, index):
        alive = self.deadly is not None and not self.deadly.is_set()
        if index == self.index and not alive:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_and_leaves_nothing(persistent):
    deadly = multiprocessing.Event()
    deadly.set()
    loader = DataLoader(
        Deadly(6, deadly), 2, num_workers=2, persistent_workers=persistent, device="cpu"
    )
    got, error = until_error(loader)

    assert isinstance(error, RuntimeError)
    assert re.search(r"killed by signal|exited unexpectedly", str(error))
    assert got == list(range(len(got)))  # how many is a matter of timing
    assert multiprocessing.active_children() == []
    deadly.clear()
    assert numbers(loader) == list(range(12))
    loader._forget_workers()


def test_kept_workers_are_kept():
    loader = DataLoader(Method(), None, num_workers=2, persistent_workers=True, device="cpu")
    list(loader)
    pids = {process.pid for process in multiprocessing.active_children()}
    assert len(pids) == 2
    for _ in range(2):
        for _batch in loader:
            break
        list(loader)
    assert {process.pid for process in multiprocessing.active_children()} == pids


def test_a_new_epoch_of_kept_workers_ends_the_one_before():
    loader = DataLoader(Numbers(), 2, num_workers=1, persistent_workers=True, device="cpu")
    old = iter(loader)
    next(old)
    new = iter(loader)

    assert numbers([next(new)]) == [0, 1]
    # It does not take what is the new one's, and its loop does not look as if it were complete.
    with pytest.raises(RuntimeError, match="persistent workers serve one at a time"):
        next(old)
    assert numbers(new) == list(range(2, 12))
    newest = iter(loader)
    assert list(new) == []  # what came to its end stays there
    newest.close()


class Fails(Numbers):
    def __getitem__(self, index):
        if index == 6:
            raise LookupError("sample 6")
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_r119_an_error_of_a_worker_comes_at_its_place(persistent, device, simulated_accelerator):
    loader = DataLoader(
        Fails(),
        2,
        num_workers=2,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        device=device,
    )
    for _ in range(2):
        got, error = until_error(loader)
        assert got == list(range(6))
        assert isinstance(error, LookupError)
        assert len(multiprocessing.active_children()) == (2 if persistent else 0)


def test_a_keyboard_interrupt_leaves_nothing():
    loader = DataLoader(Numbers(), 2, num_workers=2, persistent_workers=True, device="cpu")
    batches = iter(loader)
    next(batches)
    running = loader._iterator

    def interrupted(*arguments, **settings):
        raise KeyboardInterrupt

    running._next_data = interrupted
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    del running
    assert multiprocessing.active_children() == []
    assert numbers(loader) == list(range(12))


def gives_a_lock(samples):
    return threading.Lock()


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_that_cannot_be_sent_is_an_error_not_a_wait(method):
    loader = DataLoader(
        Numbers(),
        num_workers=1,
        collate_fn=gives_a_lock,
        multiprocessing_context=method,
        device="cpu",
    )
    with pytest.raises(TypeError, match="cannot pickle"):
        list(loader)


class CannotBeRead:
    def __reduce__(self):
        return int, ("no number",)


def gives_what_cannot_be_read(samples):
    return CannotBeRead()


# The thread prints its own error. torch looks after it every five seconds.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_batch_that_cannot_be_read_is_its_own_error_whoever_reads_it(simulated_accelerator):
    for pin in (False, True):
        loader = DataLoader(
            Numbers(),
            num_workers=1,
            multiprocessing_context="fork",
            collate_fn=gives_what_cannot_be_read,
            pin_memory=pin,
            device="sim",
        )
        with pytest.raises(ValueError, match="no number"):
            list(loader)


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("method", METHODS)
def test_indices_that_cannot_be_sent_are_an_error_not_a_wait(method, batch_size):
    loader = DataLoader(
        Numbers(),
        batch_size,
        sampler=[0, 1, threading.Lock()],
        num_workers=1,
        multiprocessing_context=method,
        device="cpu",
    )
    batches = iter(loader)
    assert next(batches)["n"].tolist() == ([0, 1] if batch_size else 0)
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        list(batches)
    assert caught.value.__notes__ == ["while sending indices to a worker process"]


# The thread prints its own error. torch looks after it every five seconds.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_r035_a_dead_pinning_thread_is_explained(simulated_accelerator, monkeypatch):
    def dies(index):
        raise OSError("the pinning thread died")

    monkeypatch.setattr(torch.accelerator, "set_device_index", dies)
    loader = DataLoader(
        Numbers(), num_workers=1, multiprocessing_context="fork", device="sim", pack=False
    )
    with pytest.raises(PinMemoryError) as caught:
        list(loader)
    text = str(caught.value)
    assert "Pin memory thread exited unexpectedly" in text
    for measured in ("/dev/shm", "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "sharing strategy"):
        assert measured in text
    assert isinstance(caught.value.__cause__, RuntimeError)


SHORTAGES = {
    "DataLoader worker (pid 13) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory.": "--shm-size",
    "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)": (
        "--shm-size"
    ),
    "unable to open shared memory object </torch_12> in read-write mode: Too many open files": (
        "ulimit -n"
    ),
    "received 0 items of ancdata": "ulimit -n",
    "Too many open files. Communication with the workers is no longer possible.": "ulimit -n",
}


@pytest.mark.parametrize("text", SHORTAGES)
def test_r055_a_shortage_is_explained_with_what_was_measured(text):
    error = explained(RuntimeError(text))

    assert type(error) is DeviceError
    assert text in str(error)
    assert SHORTAGES[text] in str(error)
    assert f"RLIMIT_NOFILE {os.sysconf('SC_OPEN_MAX')}" in str(error)
    assert " free" in str(error)


def test_r055_other_errors_are_not_shortages():
    assert explained(RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed.")) is None
    assert explained(ValueError("Too many open files")) is None


class FailsWith(Numbers):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def __getitem__(self, index):
        raise self.error


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_r055_the_files_of_a_dataset_are_its_own(code, workers):
    dataset = FailsWith(OSError(code, os.strerror(code), "/data/cache"))
    with pytest.raises(OSError, match="/data/cache"):
        list(DataLoader(dataset, num_workers=workers, device="cpu"))


def with_shared_memory(size, program):
    """What the program prints where /dev/shm has this size."""
    mount = f"mount -t tmpfs -o size={size} none /dev/shm"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec {sys.executable} -c "$PROGRAM"'],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(devicekit.__file__).parents[1]),
            "PROGRAM": textwrap.dedent(program),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr}")
    assert done.stdout, done.stderr
    return done.stdout


IMAGES = """
        import warnings
        import torch
        from devicekit import DataLoader, DeviceError

        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                return torch.ones(3, 224, 224)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_r055_shared_memory_that_is_too_small():
    program = (
        IMAGES
        + """
        try:
            list(DataLoader(Images(), 16, num_workers=1, device="cpu"))
        except DeviceError as error:
            print(str(error).replace("\\n", " "))
    """
    )
    said = with_shared_memory("8m", program)
    assert "/dev/shm 8.4 MB, of which" in said
    assert "--shm-size" in said


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_r055_shared_memory_that_may_not_suffice_is_told_at_the_first_batch():
    program = (
        IMAGES
        + """
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for epoch in range(2):
                list(DataLoader(Images(), 32, num_workers=1, prefetch_factor=4, device="cpu"))
        for each in said:
            print(each.message)
    """
    )
    said = with_shared_memory("60m", program)
    assert said.startswith(
        "the first batch has 19.3 MB of tensors, and 4 like it are loaded ahead (`num_workers` 1 x "
        "`prefetch_factor` 4), in all 77.1 MB; /dev/shm had 62.9 MB free before. Workers that find "
        "no more are killed. Fix: give the process more shared memory"
    )
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("free", "told"), [(None, False), (399, True), (400, False)])
def test_r055_the_estimate_for_what_is_loaded_ahead(free, told):
    x = torch.zeros(25)  # sent once, whatever looks into it
    batch = {"x": x, "again": [x, x[:20], x[0].expand(1000)], "sparse": torch.eye(9).to_sparse()}
    text = shortage_ahead(batch, 2, 2, free)
    assert (text is not None) == told
    if told:
        assert "4 like it" in text
        assert "400 bytes; /dev/shm had 399 bytes free" in text


@pytest.mark.slow
@pytest.mark.parametrize("packing", [True, False])
def test_r055_file_descriptors_that_are_too_few(packing):
    program = f"""
        import resource
        import torch
        from devicekit import DataLoader, DeviceError
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

        class Many(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return [torch.ones(2) for _ in range(200)]

        loader = DataLoader(Many(), 2, num_workers=1, device="cpu", pack={packing})
        try:
            print(len(list(loader)))
        except DeviceError as error:
            print(str(error).replace("\\n", " "))
    """
    said = run(program)
    if packing:
        assert said == "4"
    else:
        assert "RLIMIT_NOFILE 100 (hard 100)" in said
        assert "pack=True" in said


@pytest.mark.slow
def test_an_interrupt_from_the_keyboard_leaves_nothing():
    program = """
        import multiprocessing, os, signal, threading, time
        import torch
        from devicekit import DataLoader

        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 1000
            def __getitem__(self, index):
                time.sleep(0.01)
                return index

        os.setpgrp()
        batches = iter(DataLoader(Slow(), num_workers=2, persistent_workers=True, device="cpu"))
        next(batches)
        threading.Timer(0.3, os.killpg, (0, signal.SIGINT)).start()
        try:
            list(batches)
        except KeyboardInterrupt:
            print("interrupted", len(multiprocessing.active_children()), list(batches))
    """
    assert run(program) == "interrupted 0 []"


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["", ", persistent_workers=True"])
def test_leaving_the_program_in_the_middle_is_quiet(settings):
    program = f"""
        import torch
        from devicekit import DataLoader
        loader = DataLoader(range(100), num_workers=2, device="cpu"{settings})
        batches = iter(loader)
        next(batches)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(Path(devicekit.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_thousand_times_created_begun_and_left_leaves_nothing():
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    def once(round):
        loader = DataLoader(Numbers(), 2, num_workers=1, device="cpu")
        for _batch in itertools.islice(loader, round % 3):
            pass

    for round in range(3):
        once(round)
    before = descriptors(), left_over()
    for round in range(1000):
        once(round)
    deadline = time.monotonic() + 5  # a queue's own thread ends a little after its process
    while (descriptors(), left_over()) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (descriptors(), left_over()) == before


@pytest.mark.slow
def test_a_thousand_times_in_the_main_process_on_the_device(simulated_accelerator):
    before = left_over(), simulated_accelerator_memory()
    for round in range(1000):
        loader = DataLoader(Numbers(), 2, device="sim", prefetch=1 + round % 2)
        for _batch in itertools.islice(loader, round % 3):
            pass
        _batch = None
    assert (left_over(), simulated_accelerator_memory()) == before


def simulated_accelerator_memory():
    return torch.sim.memory_allocated()
