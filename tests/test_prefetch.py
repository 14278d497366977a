"""prefetch_to_device: the schedule in virtual time, and what users see."""

from __future__ import annotations

import contextlib
import gc
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from devicekit import DataLoader, find_tensors, pack, pin, prefetch, prefetch_to_device, to_device
from devicekit.prefetch import run_schedule
from devicekit.testing import simulate
from tests.virtual_time import HostBatch, Loader, Machine, go_on, train


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """Let `gc.collect` look at what the tests make, not at all of torch."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# Scenarios: each returns the machine after the loop and whatever the program did then.

Schedule = Callable[..., Iterator[object]]


def plain(schedule: Schedule, machine: Machine, depth: int) -> None:
    seen = train(machine, schedule(Loader(machine, 20, 500.0), machine, depth))
    assert seen == list(range(20))


def copy_bound(schedule: Schedule, machine: Machine, depth: int) -> None:
    assert train(machine, schedule(Loader(machine, 20), machine, depth), compute=50.0)


def dropped_early(schedule: Schedule, machine: Machine, depth: int) -> None:
    seen = train(machine, schedule(Loader(machine, 20), machine, depth), drop_early=True)
    assert seen == list(range(20))


def kept(schedule: Schedule, machine: Machine, depth: int) -> None:
    assert train(machine, schedule(Loader(machine, 20), machine, depth), keep=4)


def broken_off(schedule: Schedule, machine: Machine, depth: int) -> None:
    seen = train(machine, schedule(Loader(machine, 20), machine, depth), stop_at=5, compute=50.0)
    assert seen == [0, 1, 2, 3, 4, 5]


def loader_fails(schedule: Schedule, machine: Machine, depth: int) -> None:
    seen: list[object] = []
    with pytest.raises(ValueError, match="sample 7 is broken"):
        train(machine, schedule(Loader(machine, 20, fail_at=7), machine, depth), seen=seen)
    assert seen == list(range(7))


def consumer_fails(schedule: Schedule, machine: Machine, depth: int) -> None:
    with pytest.raises(ArithmeticError):
        train(machine, schedule(Loader(machine, 20), machine, depth), fail_at=5, compute=50.0)


def copy_fails(schedule: Schedule, machine: Machine, depth: int) -> None:
    machine.fail_copy_at = 7
    seen: list[object] = []
    with pytest.raises(RuntimeError, match="copy of 7 failed"):
        train(machine, schedule(Loader(machine, 20), machine, depth), compute=50.0, seen=seen)
    assert seen == list(range(7))


def no_room(schedule: Schedule, machine: Machine, depth: int) -> None:
    machine.fail_allocate_at = 7
    seen: list[object] = []
    with pytest.raises(MemoryError, match="no room for 7"):
        train(machine, schedule(Loader(machine, 20), machine, depth), compute=50.0, seen=seen)
    assert seen == list(range(7))


def two_epochs(schedule: Schedule, machine: Machine, depth: int) -> None:
    loader = Loader(machine, 6)
    for _ in range(2):
        assert train(machine, schedule(loader, machine, depth)) == list(range(6))


def empty(schedule: Schedule, machine: Machine, depth: int) -> None:
    assert train(machine, schedule(Loader(machine, 0), machine, depth)) == []


def one_batch(schedule: Schedule, machine: Machine, depth: int) -> None:
    assert train(machine, schedule(Loader(machine, 1), machine, depth)) == [0]


def interrupted(schedule: Schedule, machine: Machine, depth: int) -> None:
    def batches() -> Iterator[object]:
        yield from (batch for batch in Loader(machine, 4))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(machine, schedule(batches(), machine, depth), compute=50.0)


SCENARIOS = [
    plain,
    copy_bound,
    dropped_early,
    kept,
    broken_off,
    loader_fails,
    consumer_fails,
    copy_fails,
    no_room,
    two_epochs,
    empty,
    one_batch,
    interrupted,
]


def races(scenario: Callable[[Schedule, Machine, int], None], schedule: Schedule, depth: int = 1):
    machine = Machine()
    scenario(schedule, machine, depth)
    gc.collect()  # a generator that an exception's traceback held is closed here
    go_on(machine)
    return machine.races


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_no_race(scenario, depth):
    assert races(scenario, run_schedule, depth) == []


class Setting(NamedTuple):
    """Times in us: of one batch's computation and copy, the loader's period, the host's step."""

    compute: float
    copy: float
    period: float
    host: float
    waits: bool = False  # for the result of each step, as `loss.item()` does


SETTINGS = {
    "compute bound": Setting(2000, 1550, 500, 300),
    "balanced": Setting(1600, 1550, 500, 300),
    "copy bound": Setting(800, 1550, 500, 300),
    "loader bound": Setting(800, 700, 2000, 300),
    "waits each step": Setting(2000, 1550, 500, 300, waits=True),
    "small batches": Setting(200, 12, 50, 100),
}


def efficiency(schedule: Schedule, setting: Setting, depth: int = 1) -> tuple[float, Machine]:
    """The time that the slowest part alone would take, as a part of the time taken."""
    steps = 300
    machine = Machine(setting.copy)
    train(
        machine,
        schedule(Loader(machine, steps, setting.period), machine, depth),
        compute=setting.compute,
        host=setting.host,
        item=setting.waits,
    )
    machine.synchronize(machine.record(machine.main))
    step = setting.compute + (setting.host if setting.waits else 0)
    bound = max(step, setting.copy, setting.period + Loader.take_time)
    return bound * steps / machine.now, machine


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_as_fast_as_the_slowest_part_allows(name, depth):
    reached, machine = efficiency(run_schedule, SETTINGS[name], depth)
    assert reached >= 0.97
    assert machine.races == []
    assert len(machine.blocks) <= depth + 2
    assert len(machine.host_blocks) <= depth + 4  # and two more: with the loader, and one held


@pytest.mark.parametrize("setting", [SETTINGS["compute bound"], SETTINGS["copy bound"]])
def test_copies_on_one_stream_would_be_slower(setting):
    """The model can tell a bad schedule: the copy in the order of the consumer's own work."""

    def one_stream(loader, machine, depth):
        for batch in loader:
            build, plan = machine.allocate(batch)
            target = build()
            machine.copy(plan, machine.main)
            event = machine.record(machine.main)
            yield target
            machine.synchronize(event)
            del batch, build, target, plan

    reached, _ = efficiency(one_stream, setting)
    assert reached < 0.7


# Mutations: the schedule with one line taken out must be caught.

SIDE_WAITS = "backend.wait(backend.side, backend.record(backend.consumer()))"
MAIN_WAITS = "backend.wait(backend.consumer(), ahead[0][1])"
FINAL_WAIT = "        for event, _ in held:\n            backend.synchronize(event)"
HOLD = "held.append((event, batch))"


def mutated(old: str, new: str) -> Schedule:
    source = inspect.getsource(prefetch)
    assert source.count(old) == 1, "the schedule has changed: bring the mutation up to date"
    module = types.ModuleType("mutated")
    exec(compile(source.replace(old, new), "mutated", "exec"), module.__dict__)
    return module.run_schedule


@pytest.mark.parametrize(
    ("old", "new", "caught_in"),
    [
        (SIDE_WAITS, "pass", {"plain", "dropped_early", "two_epochs"}),
        (MAIN_WAITS, "pass", {"plain", "one_batch"}),
        (FINAL_WAIT, "        pass", {"broken_off", "consumer_fails", "copy_fails", "interrupted"}),
        (HOLD, "held.append((event, None))", {"plain", "copy_fails"}),
    ],
    ids=["side waits main", "main waits event", "finally waits", "hold source"],
)
def test_an_edge_removed_is_a_race(old, new, caught_in):
    schedule = mutated(old, new)
    caught = {scenario.__name__ for scenario in SCENARIOS if races(scenario, schedule)}
    assert caught >= caught_in


@settings(max_examples=100, deadline=None)
@given(
    length=st.integers(0, 12),
    depth=st.integers(1, 4),
    copy=st.sampled_from([1.0, 100.0, 3000.0]),
    compute=st.sampled_from([1.0, 100.0, 3000.0]),
    period=st.sampled_from([0.0, 500.0]),
    keep=st.integers(0, 5),
    drop_early=st.booleans(),
    waits=st.booleans(),
    stop_at=st.none() | st.integers(0, 12),
    fail_at=st.none() | st.integers(0, 12),
    breaks=st.none() | st.sampled_from(["fail_copy_at", "fail_allocate_at"]),
    breaks_at=st.integers(0, 12),
)
def test_no_race_whatever_happens(
    length,
    depth,
    copy,
    compute,
    period,
    keep,
    drop_early,
    waits,
    stop_at,
    fail_at,
    breaks,
    breaks_at,
):
    machine = Machine(copy)
    if breaks is not None:
        setattr(machine, breaks, breaks_at)
    loader = Loader(machine, length, period, fail_at=fail_at)
    seen: list[object] = []
    ends = [length, *(end for end in (fail_at, breaks_at if breaks else None) if end is not None)]
    if stop_at is not None:
        ends.append(stop_at + 1)
    with contextlib.suppress(ValueError, MemoryError, RuntimeError):
        train(
            machine,
            run_schedule(loader, machine, depth),
            compute=compute,
            keep=keep,
            drop_early=drop_early,
            item=waits,
            stop_at=stop_at,
            seen=seen,
        )
    gc.collect()
    go_on(machine)
    assert machine.races == []
    assert seen == list(range(min(ends)))
    assert len(machine.blocks) <= depth + 2 + keep + drop_early + 8  # `go_on` takes 8


@pytest.mark.parametrize(("spare", "safe"), [(2, True), (1, False)])
@pytest.mark.parametrize("depth", [1, 3])
def test_an_iterable_may_reuse_depth_plus_2_buffers(depth, spare, safe):
    """As the docs say; with one buffer less, it overwrites a batch that is on its way."""
    machine = Machine()

    def reusing() -> Iterator[HostBatch]:
        ring = [HostBatch(machine, number) for number in range(depth + spare)]
        for number in range(30):
            buffer = ring[number % len(ring)]
            buffer.number = number
            machine.host_operation(buffer.block, f"fill {number}", number)
            yield buffer

    train(machine, run_schedule(reusing(), machine, depth), compute=2000.0)
    assert (machine.races == []) is safe


def test_issuing_after_the_hand_out_is_slow():
    early = "            issue()\n            if not ahead:\n                break\n"
    late = "            if not ahead:\n                break\n"
    yielded = "            yield ahead.popleft()[0]()\n"
    source = inspect.getsource(prefetch)
    assert source.count(early) == source.count(yielded) == 1
    module = types.ModuleType("mutated")
    source = source.replace(early, late).replace(yielded, yielded + "            issue()\n")
    exec(compile(source, "mutated", "exec"), module.__dict__)
    reached, _ = efficiency(module.run_schedule, SETTINGS["compute bound"])
    assert reached < 0.7


# What users see.


@contextlib.contextmanager
def simulated(name: str = "sim", **options: Any) -> Iterator[None]:
    try:
        simulation = simulate(name, **options)
    except NotImplementedError as error:  # this torch is too old for it
        pytest.skip(str(error))
    with simulation:
        yield


def batches(count: int) -> list[torch.Tensor]:
    return [torch.full((4,), float(i)) for i in range(count)]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_same_batches_in_the_same_order_R120(count, depth, place):
    expected = batches(count)
    found = list(prefetch_to_device(expected, place, depth=depth))
    assert [batch.tolist() for batch in found] == [batch.tolist() for batch in expected]
    assert {str(batch.device) for batch in found} <= {place}


@pytest.fixture(params=["cpu", "sim:1"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device to prefetch to; on the simulated one copies land late."""
    if request.param == "cpu":
        yield "cpu"
        return
    with simulated("sim", async_copies=True):
        yield "sim:1"


def test_len_is_that_of_the_iterable(place):
    assert len(prefetch_to_device(batches(3), place)) == 3
    with pytest.raises(TypeError, match="len"):
        len(prefetch_to_device(iter(batches(3)), place))


def test_each_iter_starts_anew(place):
    wrapped = prefetch_to_device(batches(3), place)
    for _ in range(2):
        assert [batch[0].item() for batch in wrapped] == [0, 1, 2]


def test_the_stream_is_made_once():
    with simulated("sim"):
        made = []
        module = torch.get_device_module("sim")
        real = module.Stream
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "Stream", lambda *a, **k: made.append(1) or real(*a, **k))
            wrapped = prefetch_to_device(batches(3), "sim:0")
            assert made == []
            for _ in range(3):
                list(wrapped)
        assert made == [1]


@pytest.mark.parametrize("depth", [1, 3])
def test_exception_comes_at_its_place_R119(depth, place):
    def failing() -> Iterator[torch.Tensor]:
        yield from batches(3)
        raise LookupError("sample 3")

    seen = []
    wrapped = prefetch_to_device(failing(), place, depth)
    with pytest.raises(LookupError, match="sample 3") as caught:
        seen.extend(batch[0].item() for batch in wrapped)
    assert seen == [0, 1, 2]
    assert "failing" in [entry.name for entry in caught.traceback]


def test_exhausted_after_an_exception(place):
    def failing() -> Iterator[torch.Tensor]:
        raise LookupError
        yield

    iterator = iter(prefetch_to_device(failing(), place))
    with pytest.raises(LookupError):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_failing_to_start_raises_its_own_error(place):
    with pytest.raises(TypeError, match="not iterable"):
        list(prefetch_to_device(5, place))


def test_infinite_iterable_and_close(place):
    closed = []

    def endless() -> Iterator[torch.Tensor]:
        try:
            while True:
                yield torch.ones(2)
        finally:
            closed.append(True)

    iterator = iter(prefetch_to_device(endless(), place))
    next(iterator)
    iterator.close()
    gc.collect()
    assert closed == [True]


def test_nothing_is_left_running(place):
    before = threading.active_count()
    for _ in range(100):
        for batch in prefetch_to_device(batches(3), place):
            if batch[0].item() == 1:
                break
    assert threading.active_count() == before


def test_an_exception_is_freed(place):
    """No cycle between an exception and its traceback keeps the batches of its frames alive."""

    class Marked(Exception):
        pass

    def failing() -> Iterator[torch.Tensor]:
        yield torch.ones(2)
        raise Marked

    found = []
    gc.disable()
    try:
        try:
            list(prefetch_to_device(failing(), place))
        except Marked as error:
            found.append(weakref.ref(error))
        assert found[0]() is None
    finally:
        gc.enable()


def test_any_structure_and_what_is_no_tensor(place):
    batch = {"x": torch.ones(2), "y": (torch.zeros(3), "a", None), "n": 3}
    (result,) = prefetch_to_device([batch], place)
    assert [str(tensor.device) for _, tensor in find_tensors(result)] == [place, place]
    assert result["y"][1:] == ("a", None)
    assert result["n"] == 3
    assert batch["x"].device.type == "cpu"


def test_packed_batches_are_unpacked(place):
    large = torch.zeros(300_000, dtype=torch.uint8)
    batch = {"x": torch.ones(2), "y": [torch.arange(3)], "large": large}
    (result,) = prefetch_to_device([pack(batch)], place)
    assert result["y"][0].tolist() == [0, 1, 2]
    assert {str(tensor.device) for _, tensor in find_tensors(result)} == {place}


def test_depth_must_be_positive():
    with pytest.raises(ValueError, match=r"`depth` must be at least 1, but it is 0"):
        prefetch_to_device([], "cpu", depth=0)


def stand_in_for_mps(wrapped: prefetch.Prefetcher[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    mps = types.SimpleNamespace(type="mps", is_accelerator=True)
    monkeypatch.setattr(wrapped, "device", mps)
    monkeypatch.setattr(prefetch, "to_device", lambda batch, device: (batch, device.type))


def test_packed_batches_are_unpacked_before_they_go_to_mps(monkeypatch):
    """float64 can be cast on the way only outside of the buffer."""
    wrapped = prefetch_to_device([pack([torch.ones(2, dtype=torch.float64)])], "cpu")
    stand_in_for_mps(wrapped, monkeypatch)
    ((batch, device),) = wrapped
    assert device == "mps"
    assert batch[0].dtype == torch.float64


@pytest.mark.parametrize("where", ["cpu", "mps"])
def test_without_streams_nothing_is_fetched_ahead_R123(where, monkeypatch):
    threads = threading.active_count()
    taken = []

    def source() -> Iterator[torch.Tensor]:
        for i in range(3):
            taken.append(i)
            yield torch.ones(1)

    wrapped = prefetch_to_device(source(), "cpu")
    if where == "mps":
        monkeypatch.setattr(
            wrapped, "device", types.SimpleNamespace(type="mps", is_accelerator=True)
        )
        monkeypatch.setattr(prefetch, "to_device", lambda batch, device: batch)
    for step, _ in enumerate(wrapped):
        assert taken == list(range(step + 1))
        assert threading.active_count() == threads


# On the simulated accelerator, where a copy that was not waited for reads as NaN:


@pytest.fixture
def late_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device where a copy lands only when somebody waits for it, never by the time of day."""
    monkeypatch.setattr(prefetch.TorchBackend, "is_done", lambda self, event: False)
    with simulated("sim", async_copies=True):
        yield "sim:0"


def test_the_simulation_shows_a_missing_wait(late_copies):
    """Else the tests below would prove nothing."""
    module = torch.get_device_module("sim")
    source = torch.ones(4).pin_memory()
    target = torch.empty_like(source, device=late_copies)
    with module.stream(module.Stream(device=late_copies)):
        target.copy_(source, non_blocking=True)
    assert target.isnan().all()


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_poison_reaches_the_consumer(depth, pinned, late_copies):
    source = [batch.pin_memory() if pinned else batch for batch in batches(20)]
    kept = []
    for i, batch in enumerate(prefetch_to_device(source, late_copies, depth)):
        scaled = batch * 2
        kept.append(batch)
        assert scaled.tolist() == [2.0 * i] * 4
    assert [batch.tolist() for batch in kept] == [batch.tolist() for batch in source]


def test_the_simulation_catches_the_schedule_without_its_wait(late_copies):
    backend = prefetch.TorchBackend(torch.device(late_copies))
    found = mutated(MAIN_WAITS, "pass")(batches(3), backend, 1)
    assert any(batch.isnan().any() for batch in found)


def test_copies_are_issued_ahead(late_copies, monkeypatch):
    """While a step on batch i is queued, the copy of batch i + 1 has been issued, on one stream."""
    issued = []
    real = prefetch.TorchBackend.copy

    def copy(self, plan, stream):
        issued.append((plan[0][1][0].item(), stream))
        real(self, plan, stream)

    monkeypatch.setattr(prefetch.TorchBackend, "copy", copy)
    for i, _ in enumerate(prefetch_to_device(batches(5), late_copies)):
        assert [number for number, _ in issued] == list(range(min(i + 2, 5)))
    assert len({stream.stream_id for _, stream in issued}) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_many_small_tensors_are_pinned_and_copied_as_one(workers, late_copies, monkeypatch):
    pinned, copied = [], []
    pin, copy = Tensor.pin_memory, prefetch.TorchBackend.copy

    def pin_noted(tensor):
        pinned.append(tensor)
        return pin(tensor)

    def copy_noted(self, plan, stream):
        copied.append(len(plan))
        copy(self, plan, stream)

    monkeypatch.setattr(Tensor, "pin_memory", pin_noted)
    monkeypatch.setattr(prefetch.TorchBackend, "copy", copy_noted)
    samples = [[torch.full((3,), float(i)) for i in range(100)] for _ in range(3)]
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = DataLoader(samples, batch_size=None, device=late_copies, **settings)
    for batch in loader:
        assert [x[0].item() for x in batch] == list(range(100))
    assert copied == [1, 1, 1]
    assert len(pinned) == 3


def test_unpinned_tensors_are_pinned_R123(late_copies, monkeypatch):
    asynchronous = []
    real = torch.Tensor.copy_

    def copy(self, source, non_blocking=False):
        asynchronous.append((source.is_pinned(), non_blocking))
        return real(self, source, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    backend = prefetch.TorchBackend(torch.device(late_copies))
    _, plan = backend.allocate({"x": torch.ones(2), "y": torch.ones(3).pin_memory()})
    asynchronous.clear()
    backend.copy(plan, backend.side)
    assert asynchronous == [(True, True), (True, True)]


def test_refused_pinning_is_one_warning_and_no_loss_R040(late_copies, monkeypatch):
    def refuse(self: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(pin, "_refused", [])
    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    with pytest.warns(UserWarning, match="continuing without pinned memory") as caught:
        found = list(prefetch_to_device(batches(5), late_copies))
    assert [batch[0].item() for batch in found] == [0, 1, 2, 3, 4]
    assert len(caught) == 1


def test_what_is_there_already_is_passed_on(late_copies):
    there = torch.ones(2, device=late_copies)
    (result,) = prefetch_to_device([{"there": there, "x": torch.ones(2)}], late_copies)
    assert result["there"] is there


def test_layout_and_aliases_are_kept(late_copies):
    x = torch.arange(6.0).view(2, 3).t()
    (result,) = prefetch_to_device([[x, x, x[0]]], late_copies)
    assert result[0].stride() == x.stride()
    assert result[0] is result[1]
    assert result[2].tolist() == x[0].tolist()


class Scaled:
    """Looks at its tensor when it is made."""

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.largest = x.max()


@pytest.mark.parametrize("packed", [False, True])
def test_objects_are_made_when_their_tensors_are_there(packed, late_copies):
    to_device.register(Scaled, lambda s: {".x": s.x}, lambda s, new: Scaled(new[".x"]))
    try:
        source = [[batch, Scaled(batch)] for batch in batches(5)]
        found = prefetch_to_device(map(pack, source) if packed else source, late_copies)
        for i, (x, scaled) in enumerate(found):
            assert scaled.largest.item() == i
            assert scaled.x is x
    finally:
        to_device.unregister(Scaled)


def test_the_consumers_stream_is_asked_at_each_batch(late_copies):
    """A consumer that works on a stream of its own is waited for, and waits, there."""
    module = torch.get_device_module("sim")
    with module.stream(module.Stream(device=late_copies)):
        found = [batch[0].item() for batch in prefetch_to_device(batches(5), late_copies)]
    assert found == [0, 1, 2, 3, 4]


def test_running_out_of_memory_comes_at_its_place(monkeypatch):
    with simulated("sim", memory=4 << 20, async_copies=True):
        source = [torch.zeros(1000), torch.zeros(1000), torch.zeros(8 << 20)]
        seen = []
        wrapped = prefetch_to_device(source, "sim:0")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            seen.extend(batch.numel() for batch in wrapped)
        assert seen == [1000, 1000]
        assert "batch (float32[8388608]" in caught.value.__notes__[0]


def test_under_cudas_name():
    with simulated("cuda", async_copies=True):
        wrapped = prefetch_to_device(batches(4), "cuda:1")
        found = [(batch.device, (batch + 1)[0].item()) for batch in wrapped]
    assert found == [(torch.device("cuda:1"), i + 1.0) for i in range(4)]


def test_a_backend_without_streams(late_copies, monkeypatch):
    monkeypatch.delattr(torch.get_device_module("sim"), "Stream")
    found = list(prefetch_to_device(batches(3), late_copies))
    assert [batch[0].item() for batch in found] == [0, 1, 2]


@pytest.mark.accelerator
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs a real accelerator")
def test_late_consumer_on_a_real_accelerator():
    """The device is kept busy, batches are dropped at once, and every one is read right."""
    device = torch.accelerator.current_accelerator()
    count, size = 60, 4 << 20
    source = [torch.full((size,), i, dtype=torch.uint8).pin_memory() for i in range(count)]
    heavy = torch.randn(2048, 2048, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for i, batch in enumerate(prefetch_to_device(source, device)):
        for _ in range(20):
            heavy = torch.nn.functional.normalize(heavy @ heavy)
        wrong += (batch != i).sum()
        del batch
    assert wrong.item() == 0


@pytest.mark.parametrize("depth", [None, "1", 1.5, True])
def test_a_depth_that_is_no_number_of_batches_is_refused_at_once(depth):
    with pytest.raises(TypeError, match="`depth` must be an int, but it is"):
        prefetch_to_device([torch.ones(1)], "cpu", depth)
