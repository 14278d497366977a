"""What docs/interop.md says of PyTorch Geometric, tensordict, attrs and torchdata."""

import pytest
import torch
from interop_page import run_section

from devicekit import DataLoader, Device, DeviceMismatchError, prefetch_to_device, to_device

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata
]

SIM = "sim:1"


def test_a_graph_moves_and_the_callers_stays(simulated_accelerator):
    data = pytest.importorskip("torch_geometric.data", reason="docs/interop.md shows PyG")
    graph = data.Data(x=torch.rand(3, 2), edge_index=torch.zeros(2, 2, dtype=torch.long))
    hetero = data.HeteroData()
    hetero["paper"].x = torch.rand(3, 2)
    hetero["paper", "cites", "paper"].edge_index = torch.zeros(2, 2, dtype=torch.long)

    assert to_device(graph, SIM).edge_index.device == Device(SIM)
    assert graph.x.device.type == "cpu"
    moved = to_device(hetero, SIM)
    assert (
        moved["paper"].x.device == moved["paper", "cites", "paper"].edge_index.device == Device(SIM)
    )
    assert hetero["paper"].x.device.type == "cpu"
    assert graph.to(SIM) is graph  # PyG's own moves the caller's object


@pytest.mark.parametrize("workers", [0, 2])
def test_graphs_through_the_loader(workers, simulated_accelerator):
    pytest.importorskip("torch_geometric", reason="docs/interop.md shows PyG")
    from torch_geometric.loader.dataloader import Collater

    names = run_section("PyTorch Geometric")
    graphs = names["graphs"]
    # Forked: another process would import PyG again, which takes seconds.
    context = "fork" if workers else None
    loader = DataLoader(
        graphs,
        batch_size=4,
        collate_fn=Collater(graphs),
        num_workers=workers,
        multiprocessing_context=context,
        device=SIM,
    )
    peers = prefetch_to_device(names["GraphLoader"](graphs, batch_size=4), SIM)
    for mine, peer in zip(loader, peers, strict=True):
        assert mine.num_graphs == peer.num_graphs == 4
        assert mine.x.device == peer.x.device == mine.batch.device == Device(SIM)
        torch.testing.assert_close(mine.x.cpu(), peer.x.cpu())
        assert mine.to_data_list()[0].x.device == Device(SIM)


def test_a_guard_names_the_graph_that_was_left_behind(simulated_accelerator):
    pytest.importorskip("torch_geometric", reason="docs/interop.md shows PyG")
    names = run_section("PyTorch Geometric")
    batch = next(iter(names["GraphLoader"](names["graphs"], batch_size=4)))
    with pytest.raises(DeviceMismatchError, match=r"GraphNet\.forward") as caught:
        names["model"](batch)

    assert "cpu    graph" in str(caught.value)
    assert "fix: " in str(caught.value)


def test_a_tensordict_is_itself_where_nothing_moves(simulated_accelerator):
    tensordict = pytest.importorskip("tensordict", reason="docs/interop.md shows tensordict")
    data = tensordict.TensorDict({"x": torch.rand(4, 3)}, batch_size=[4])

    assert data.device is None
    assert to_device(data, "cpu") is data
    moved = to_device(data, SIM)
    assert moved.device == moved["x"].device == Device(SIM)
    assert data["x"].device.type == "cpu"


def test_tensordicts_stacked_by_the_loader(simulated_accelerator):
    tensordict = pytest.importorskip("tensordict", reason="docs/interop.md shows tensordict")
    data = tensordict.TensorDict({"x": torch.arange(6.0)}, batch_size=[6])
    batches = list(DataLoader(list(data), batch_size=2, collate_fn=torch.stack, device=SIM))

    assert {type(batch) for batch in batches} == {tensordict.TensorDict}
    assert {batch["x"].device for batch in batches} == {torch.device(SIM)}
    assert [batch["x"].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


def test_a_tensorclass_keeps_its_type_and_its_text(simulated_accelerator):
    tensordict = pytest.importorskip("tensordict", reason="docs/interop.md shows tensordict")

    class Sample(tensordict.TensorClass):
        x: torch.Tensor
        name: str

    moved = to_device(Sample(x=torch.rand(4), name="first", batch_size=[4]), SIM)
    assert type(moved) is Sample
    assert (moved.x.device, moved.name) == (torch.device(SIM), "first")


@pytest.mark.parametrize("settings", [{"frozen": True}, {"slots": True}, {"slots": False}])
def test_attrs_classes_move_without_their_constructor(settings, simulated_accelerator):
    attrs = pytest.importorskip("attrs", reason="docs/interop.md shows attrs")
    made = []

    @attrs.define(**settings)
    class Sample:
        x: torch.Tensor
        parts: list = attrs.field(factory=list)

        def __attrs_post_init__(self):
            made.append(self)

    sample = Sample(torch.rand(2), [torch.rand(1)])
    moved = to_device(sample, SIM)
    assert type(moved) is Sample
    assert moved.x.device == moved.parts[0].device == Device(SIM)
    assert sample.parts[0].device.type == "cpu"
    assert len(made) == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stateful_loader_is_ahead_by_the_depth(depth, simulated_accelerator):
    torchdata = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="docs/interop.md shows torchdata"
    )

    def loader():
        return torchdata.StatefulDataLoader(list(range(10)), batch_size=2)

    stateful = loader()
    batches = iter(prefetch_to_device(stateful, SIM, depth=depth))
    next(batches)
    other = loader()
    other.load_state_dict(stateful.state_dict())

    assert next(iter(other)).tolist() == [2 + 2 * depth, 3 + 2 * depth]
