"""Each process of a distributed run loads its part: with real processes over gloo."""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler

import devicekit
from devicekit import DataLoader
from devicekit.loader import distributed
from devicekit.loader.distributed import EpochSampler

PRELUDE = """
    import json
    import os
    import torch
    import torch.distributed as dist
    from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler, TensorDataset
    from devicekit import DataLoader

    RANK = int(os.environ["RANK"])

    def samples(loader):
        return [int(n) for (batch,) in loader for n in batch]

    def report(**values):
        print(json.dumps(values), flush=True)

    early = DataLoader(TensorDataset(torch.arange(11)), 2, device="cpu")
    dist.init_process_group("gloo")
    data = TensorDataset(torch.arange(11))
"""


def run(world_size, program):
    """Run the program in `world_size` processes; return what each reported."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    settings = {
        **os.environ,
        "PYTHONPATH": str(Path(devicekit.__file__).parents[1]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
    }
    text = textwrap.dedent(PRELUDE) + textwrap.dedent(program) + "\ndist.destroy_process_group()\n"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", text],
            env={**settings, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    done = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * world_size, done
    return [json.loads(out) for out, _ in done]


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_processes_share_the_dataset(world_size):
    ranks = run(
        world_size,
        """
        plain = DataLoader(data, 2, device="cpu")
        shuffled = DataLoader(data, 2, shuffle=True, device="cpu", num_workers=1)
        dropping = DataLoader(data, 2, drop_last=True, device="cpu")
        keep = {"num_workers": 1, "persistent_workers": True}
        kept = DataLoader(data, 2, shuffle=True, device="cpu", **keep)
        single = DataLoader(TensorDataset(torch.arange(11)), None, device="cpu")
        own = DataLoader(data, 2, sampler=RandomSampler(data), device="cpu")
        theirs = DistributedSampler(data, shuffle=True)
        given = DataLoader(data, 2, sampler=theirs, device="cpu")
        batches = DataLoader(data, batch_sampler=[[0, 1], [2]], device="cpu")

        class Stream(IterableDataset):
            def __iter__(self):
                return iter([(n,) for n in range(4)])

        report(
            plain=samples(plain),
            length=len(plain),
            early=samples(early),
            shuffled=[samples(shuffled) for _ in range(3)],
            kept=[samples(kept) for _ in range(3)],
            dropping=samples(dropping),
            single=[int(n) for (n,) in single],
            own=samples(own),
            given=[samples(given) for _ in range(2)],
            given_is_theirs=given.sampler is theirs and theirs.epoch == 0,
            batches=samples(batches),
            stream=samples(DataLoader(Stream(), 2, device="cpu")),
            sampler=type(plain.sampler).__name__,
            resumed=(shuffled.set_epoch(1), samples(shuffled))[1],
        )
        """,
    )
    everything = set(range(11))

    for name in ("plain", "early", "single"):
        parts = [rank[name] for rank in ranks]
        assert set().union(*parts) == everything
        assert len({len(part) for part in parts}) == 1  # even: some samples are given twice
        assert 0 <= sum(map(len, parts)) - 11 < world_size
    assert {rank["length"] for rank in ranks} == {-(-len(ranks[0]["plain"]) // 2)}

    for name in ("shuffled", "kept"):
        epochs = list(zip(*(rank[name] for rank in ranks), strict=True))
        assert all(set().union(*parts) == everything for parts in epochs)
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert all(rank["resumed"] == rank["shuffled"][1] for rank in ranks)

    dropped = [rank["dropping"] for rank in ranks]
    assert max(Counter(chain(*dropped)).values()) == 1  # none twice, at the price of the last

    for rank in ranks:
        assert set(rank["own"]) == everything
        assert rank["given"][0] == rank["given"][1]  # the caller has not called set_epoch
        assert rank["given_is_theirs"]
        assert rank["batches"] == [0, 1, 2]
        assert rank["stream"] == [0, 1, 2, 3]
        assert rank["sampler"] == "SequentialSampler"
    assert set().union(*(rank["given"][0] for rank in ranks)) == everything


class Numbers(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(index)


@pytest.fixture
def rank_1_of_2(monkeypatch):
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 1)


def test_a_part_is_what_distributed_sampler_gives(rank_1_of_2):
    loader = DataLoader(Numbers(), 2, shuffle=True, device="cpu")
    theirs = DistributedSampler(Numbers(), num_replicas=2, rank=1)

    for epoch in range(3):
        theirs.set_epoch(epoch)
        assert torch.cat(list(loader)).tolist() == list(theirs)
    assert len(loader) == 3


def test_a_part_without_a_whole_batch_is_empty(rank_1_of_2):
    loader = DataLoader(Numbers(), 8, drop_last=True, device="cpu")

    assert len(loader) == 0
    assert list(loader) == []


def test_the_sampler_that_others_look_at_is_the_whole(rank_1_of_2):
    # accelerate and Lightning divide what `sampler` gives: they must not divide a part again.
    loader = DataLoader(Numbers(), 2, shuffle=True, device="cpu")

    assert type(loader.sampler) is RandomSampler
    assert sorted(loader.sampler) == list(range(10))


def test_a_process_group_of_one_changes_nothing(monkeypatch):
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(distributed.dist, "get_rank", lambda: 0)
    torch.manual_seed(0)
    ours = torch.cat(list(DataLoader(Numbers(), shuffle=True, device="cpu")))
    torch.manual_seed(0)
    theirs = torch.cat(list(torch.utils.data.DataLoader(Numbers(), shuffle=True)))

    assert torch.equal(ours, theirs)


def test_the_sampler_counts_its_epochs():
    sampler = EpochSampler(Numbers(), num_replicas=2, rank=0)
    first, second = list(sampler), list(sampler)

    assert first != second
    assert sampler.epoch == 2
    sampler.set_epoch(0)
    assert list(sampler) == first
