"""prefetch_to_device: the schedule in virtual time, and what users see on the CPU."""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from devicekit import prefetch
from devicekit.prefetch import run_schedule
from tests.virtual_time import Loader, Machine, go_on, train


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
        consume(seen, machine, schedule(Loader(machine, 20, fail_at=7), machine, depth))
    assert seen == list(range(7))


def consumer_fails(schedule: Schedule, machine: Machine, depth: int) -> None:
    with pytest.raises(ArithmeticError):
        train(machine, schedule(Loader(machine, 20), machine, depth), fail_at=5, compute=50.0)


def copy_fails(schedule: Schedule, machine: Machine, depth: int) -> None:
    machine.fail_copy_at = 7
    seen: list[object] = []
    with pytest.raises(RuntimeError, match="copy of 7 failed"):
        consume(seen, machine, schedule(Loader(machine, 20), machine, depth), compute=50.0)
    assert seen == list(range(7))


def no_room(schedule: Schedule, machine: Machine, depth: int) -> None:
    machine.fail_allocate_at = 7
    seen: list[object] = []
    with pytest.raises(MemoryError, match="no room for 7"):
        consume(seen, machine, schedule(Loader(machine, 20), machine, depth), compute=50.0)
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


def consume(
    seen: list[object], machine: Machine, batches: Iterator[object], compute: float = 1000.0
) -> None:
    for batch in batches:
        machine.kernel(machine.main, batch.block, f"step {batch.block.content}", compute)
        seen.append(batch.block.content)
        del batch


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
            target, plan = machine.allocate(batch)
            machine.copy(plan, machine.main)
            event = machine.record(machine.main)
            yield target
            machine.synchronize(event)
            del batch, target, plan

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


def test_issuing_after_the_hand_out_is_slow():
    early = "            issue()\n            if not ahead:\n                break\n"
    late = "            if not ahead:\n                break\n"
    yielded = "            yield _opened(ahead.popleft()[0])\n"
    source = inspect.getsource(prefetch)
    assert source.count(early) == source.count(yielded) == 1
    module = types.ModuleType("mutated")
    source = source.replace(early, late).replace(yielded, yielded + "            issue()\n")
    exec(compile(source, "mutated", "exec"), module.__dict__)
    reached, _ = efficiency(module.run_schedule, SETTINGS["compute bound"])
    assert reached < 0.7
