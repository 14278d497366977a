"""What surrounds a device test: state put back, checks, fixtures that outlive a test, turns."""

import threading
import time
from pathlib import Path

import pytest
import torch

from devicekit import Device
from devicekit.testing.plugin import running, turns


def test_state_is_put_back(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch, warnings
        from devicekit import Device

        before = torch.get_rng_state(), torch.get_default_device()

        def test_disturbs(device):
            torch.manual_seed(1)
            torch.rand(3, device=device)
            torch.set_default_device("sim" if device == "sim:0" else "meta")

        def test_sees_nothing():
            assert torch.get_default_device() == before[1]
            assert torch.ones(1).device == before[1]
            assert torch.equal(torch.get_rng_state(), before[0])

        def test_default_device_of_the_simulation():
            # Nothing is left that a function of torch would go through.
            assert torch._C._len_torch_function_stack() == 0

        def test_warned_once(device):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                Device("cuda")
            assert len(caught) == 1  # also in the second test
        """
    )
    pytester.runpytest_inprocess("--devicekit-devices=cpu,sim").assert_outcomes(passed=6)


def test_generators_of_the_accelerator_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # There is no CUDA here: what is asked of its module shows that its states are kept.
    states = {0: torch.tensor([1]), 1: torch.tensor([2])}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(states.values()))
    monkeypatch.setattr(
        torch.cuda, "set_rng_state_all", lambda kept: states.update(enumerate(kept))
    )
    with running._torch_state("cpu"):
        states[0], states[1] = torch.tensor([3]), torch.tensor([4])
    assert [int(state) for state in states.values()] == [1, 2]


def test_checks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        check = pytest.mark.devicekit_check
        kept = []

        @check(memory=True)
        def test_memory(device): kept.append(torch.ones(1000, device=device))

        @check(leftovers=True)
        def test_elsewhere(device): kept.append(torch.ones(2))

        @check(memory=True, leftovers=True)
        def test_clean(device):
            torch.ones(2, device=device) + 1
            torch.ones(2)

        @check(leftovers=True)
        def test_kept_where_it_belongs(device): kept.append(torch.ones(5, device=device))

        @check(memory=True)
        def test_fails_for_its_own_reason(device):
            kept.append(torch.ones(1000, device=device))
            assert device == "nothing"
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=cpu,sim", "-rA")
    # On the CPU: no statistics of memory, and a leftover is where it belongs.
    result.assert_outcomes(passed=6, failed=4)
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *test_memory?sim? - *",
            "still allocated after the test: 4* bytes on sim:0",
            "FAILED *test_elsewhere?sim? - *",
            "1 tensor(s) on another device than sim outlived the test: (2,) on cpu",
            "FAILED *test_fails_for_its_own_reason?sim? - Asser*",
            "FAILED *test_fails_for_its_own_reason?cpu? - Asser*",
            "not checked: memory: cpu has no allocator statistics",
        ]
    )


SYNCHRONISES = [
    "x.sum().item()",
    "bool(x.sum() > 0)",
    "x.cpu()",
    "x.tolist()",
    "x + torch.ones(2).to(device)",
    "x.nonzero()",
    "x[x > 0]",
    "x.__setitem__(x > 0, torch.ones(2, device=device))",
    "torch.equal(x, x)",
    "x.unique()",
    "x.repeat_interleave(torch.ones(2, dtype=torch.int, device=device))",
]
DOES_NOT = [
    "x.sum() + x.mean()",
    "torch.nn.Linear(2, 2, device=device)(x).sum().backward()",
    "x[torch.zeros(1, dtype=torch.long, device=device)]",
    "x.__setitem__(x > 0, 1.0)",
    "torch.where(x > 0, x, 0)",
    "x.to('cpu', non_blocking=True)",
    "torch.ones(2).nonzero(), torch.ones(2).sum().item()",
    "x.repeat_interleave(torch.ones(2, dtype=torch.int, device=device), output_size=2)",
]


def test_hidden_synchronisation_is_seen(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import pytest, torch

        @pytest.mark.parametrize("code", {SYNCHRONISES})
        @pytest.mark.devicekit_check(sync=True)
        def test_waits(device, code):
            x = torch.ones(2, device=device)
            with pytest.raises(RuntimeError, match="called a synchronizing operation"):
                eval(code)

        @pytest.mark.parametrize("code", {DOES_NOT})
        @pytest.mark.devicekit_check(sync=True)
        def test_goes_on(device, code):
            x = torch.ones(2, device=device)
            eval(code)

        def test_is_not_asked(device):
            torch.ones(2, device=device).sum().item()
        """
    )
    result = pytester.runpytest_inprocess("--devicekit-devices=sim")
    result.assert_outcomes(passed=len(SYNCHRONISES) + len(DOES_NOT) + 1)


def test_a_fixture_that_outlives_its_test_is_torn_down_in_a_simulation(
    pytester: pytest.Pytester,
) -> None:
    fixtures = """
        import pytest, torch

        @pytest.fixture(scope="module")
        def model(device):
            model = torch.nn.Linear(2, 1, device=device)
            yield model
            assert model(torch.ones(1, 2, device=device)).device == device

        @pytest.fixture(scope="session")
        def table(device):
            table = torch.ones(2, device=device)
            yield table
            assert (table + table).sum() == 4
        """
    tests = """
        import torch

        def test_first(model, table): pass
        def test_second(model, table): model.weight + table
        def test_between(): assert not torch.accelerator.is_available()
        """
    pytester.makeconftest(fixtures)
    pytester.makepyfile(test_a=tests, test_b=tests)
    # After the last test of the simulation there come the CPU's, or those that need none.
    for devices in ("sim,cpu", "cpu,sim"):
        result = pytester.runpytest_inprocess(f"--devicekit-devices={devices}")
        result.assert_outcomes(passed=10)


def test_workers_that_share_a_device_take_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # R099: not all workers on one card at once, and memory is given back before the next.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    monkeypatch.setattr(turns, "files", set())
    emptied: list[float] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(time.monotonic()))
    device = Device("cpu")
    monkeypatch.setattr(Device, "type", "cuda")
    begun: list[float] = []

    def test() -> None:
        with turns.turn([device]):
            begun.append(time.monotonic())
            time.sleep(0.05)

    threads = [threading.Thread(target=test) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun[0] < emptied[0] < begun[1] < emptied[1]
    assert len(turns.files) == len(list(tmp_path.iterdir())) == 1
    # Where each worker has its own, nobody waits.
    with turns.turn([device, device]), turns.turn([device, device]):
        pass


def test_workers_take_devices_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    from devicekit.testing.plugin.selection import worker_index

    found = []
    for worker in ("gw0", "gw1", "gw2", "gw5", "master", ""):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        found.append(worker_index(3))
    assert found == [0, 1, 2, 2, 0, 0]
