"""to_device on the types of other libraries, as they are today."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from devicekit import MoveError, find_tensors, to_device
from devicekit.testing import Simulation, assert_on

pytestmark = [
    pytest.mark.ecosystem,
    # What the libraries warn about among themselves is not our business here.
    pytest.mark.filterwarnings("default"),
]


def t(value: float = 1.0, *shape: int) -> Tensor:
    return torch.full(shape or (2,), value)


@pytest.fixture(params=["meta", "sim"])
def target(request: pytest.FixtureRequest) -> torch.device:
    if request.param == "meta":
        return torch.device("meta")
    running: Simulation = request.getfixturevalue("simulated_accelerator")
    return running.devices[1]


# attrs --------------------------------------------------------------------------------------------


def test_attrs_classes(target: torch.device) -> None:
    attrs = pytest.importorskip("attrs")

    def validate(instance: Any, attribute: Any, value: Any) -> None:
        assert value.is_cpu, "a validator ran while moving"

    options = [
        {"slots": False},
        {"slots": True},
        {"frozen": True},
        {"frozen": True, "slots": False},
    ]
    for option in options:

        @attrs.define(**option)
        class Sample:
            x: Tensor = attrs.field(validator=validate)
            n: int = 3
            y: Any = attrs.field(init=False)
            _private: Any = None

            def __attrs_post_init__(self) -> None:
                object.__setattr__(self, "y", [self.x + 1])

        data = Sample(t(), private=t(4))
        moved = to_device({"s": data}, target)["s"]

        assert type(moved) is Sample
        assert_on(target, moved)
        assert sorted(path for path, _ in find_tensors(moved)) == [
            "data._private",
            "data.x",
            "data.y[0]",
        ]
        assert moved.n == 3
        assert_on("cpu", data)
        assert to_device(data, "cpu") is data


# transformers -------------------------------------------------------------------------------------


def test_R005_batch_encoding_is_not_changed_in_place(target: torch.device) -> None:
    transformers = pytest.importorskip("transformers")
    ids = t()
    data = transformers.BatchEncoding({"input_ids": ids, "history": {"k": [t(2)]}, "text": ["a"]})

    moved = to_device(data, target)

    assert type(moved) is transformers.BatchEncoding
    assert moved is not data
    assert_on(target, moved)
    assert [path for path, _ in find_tensors(moved)] == [
        "data['input_ids']",
        "data['history']['k'][0]",
    ]
    assert moved["text"] is data["text"]
    assert data["input_ids"] is ids
    assert_on("cpu", data)
    assert to_device(data, "cpu") is data


def test_batch_feature(target: torch.device) -> None:
    transformers = pytest.importorskip("transformers")
    data = transformers.BatchFeature({"pixels": t(), "n": 3})
    moved = to_device([data], target)[0]
    assert type(moved) is transformers.BatchFeature
    assert moved["pixels"].device == target
    assert data["pixels"].is_cpu


def test_model_output(target: torch.device) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    states = (t(2), t(3))
    data = outputs.BaseModelOutput(last_hidden_state=t(), hidden_states=states)

    moved = to_device(data, target)

    assert type(moved) is outputs.BaseModelOutput
    assert list(moved.keys()) == ["last_hidden_state", "hidden_states"]
    assert moved.last_hidden_state is moved["last_hidden_state"] is moved[0]
    assert moved.last_hidden_state.device == target
    assert all(x.device == target for x in moved.hidden_states)
    assert moved.attentions is None
    assert data.last_hidden_state.is_cpu
    assert to_device(data, "cpu") is data


# torch_geometric ----------------------------------------------------------------------------------


def graph() -> Any:
    data = pytest.importorskip("torch_geometric.data")
    return data.Data(
        x=t(1, 2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), name="g", extra=[t(5)]
    )


def test_graph_is_not_changed_in_place(target: torch.device) -> None:
    data = graph()
    x = data.x

    moved = to_device({"g": data}, target)["g"]

    assert type(moved) is type(data)
    assert moved.x.device == moved.edge_index.device == moved.extra[0].device == target
    assert moved.name == "g"
    assert data.x is x
    assert data.edge_index.is_cpu
    assert data.extra[0].is_cpu
    assert to_device([data], "cpu")[0] is data
    assert to_device(moved, target, strict=True) is moved


def test_heterogeneous_graph(target: torch.device) -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.HeteroData()
    data["paper"].x = t(1, 2, 3)
    data["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 0]])

    moved = to_device(data, target, strict=True)

    assert type(moved) is pyg.HeteroData
    assert moved["paper"].x.device == target
    assert moved["paper", "cites", "paper"].edge_index.device == target
    assert moved.metadata() == data.metadata()
    assert data["paper"].x.is_cpu


def test_batch_of_graphs(target: torch.device) -> None:
    pyg = pytest.importorskip("torch_geometric.data")
    data = pyg.Batch.from_data_list([graph(), graph()])

    moved = to_device(data, target, strict=True)

    assert type(moved) is type(data)
    assert moved.x.device == moved.batch.device == moved.ptr.device == target
    assert moved.num_graphs == 2
    assert data.x.is_cpu
    if target.type != "meta":
        assert moved.get_example(1).x.cpu().tolist() == data.get_example(1).x.tolist()


# tensordict ---------------------------------------------------------------------------------------


def test_tensordict(target: torch.device) -> None:
    tensordict = pytest.importorskip("tensordict")
    data = tensordict.TensorDict({"a": t(1, 2, 3), "n": {"b": t(2, 2)}}, batch_size=[2])

    moved = to_device({"td": data}, target)["td"]

    assert type(moved) is tensordict.TensorDict
    assert moved.batch_size == data.batch_size
    assert moved["a"].device == moved["n", "b"].device == target
    assert data["a"].is_cpu
    assert to_device([data], "cpu")[0] is data
    assert to_device(moved, target, strict=True) is moved


def test_tensorclass(target: torch.device) -> None:
    tensordict = pytest.importorskip("tensordict")

    @tensordict.tensorclass
    class Sample:
        x: Tensor
        name: str

    data = Sample(x=t(1, 2, 3), name="a", batch_size=[2])

    moved = to_device([data], target, strict=True)[0]

    assert type(moved) is Sample
    assert moved.batch_size == torch.Size([2])
    assert moved.x.device == target
    assert moved.name == "a"
    assert data.x.is_cpu
    assert to_device(data, "cpu") is data


# others -------------------------------------------------------------------------------------------


def test_numpy_and_pandas_are_left_alone() -> None:
    pandas = pytest.importorskip("pandas")
    data = {
        "array": np.ones(2),
        "objects": np.array([{}, None], dtype=object),
        "scalar": np.float32(1),
        "frame": pandas.DataFrame({"a": [1]}),
        "series": pandas.Series([1]),
        "time": pandas.Timestamp("2026-01-01"),
        "x": t(),
    }

    moved = to_device(data, "meta", strict=True)

    assert moved["x"].is_meta
    assert all(moved[key] is data[key] for key in data if key != "x")


def test_hydra_config_is_left_alone() -> None:
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"a": [1, {"b": "c"}], "d": "${a}"})
    assert to_device([config, t()], "meta")[0] is config


def test_metrics_move_with_their_state(simulated_accelerator: Simulation) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.MeanMetric()
    metric.update(3.0)

    assert to_device({"m": metric}, "sim:0")["m"] is metric

    assert str(metric.mean_value.device) == "sim:0"
    assert metric.compute().item() == 3


def test_a_model_of_transformers_with_tied_weights() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8, n_positions=4)
    model = transformers.GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight

    to_device(model, "meta")

    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.lm_head.weight.is_meta
    with pytest.raises(MoveError, match="to_empty"):
        to_device(model, "cpu")


def test_agrees_with_accelerate_where_it_is_right() -> None:
    operations = pytest.importorskip("accelerate.utils.operations")
    data = {"x": t(), "y": [t(), (t(), {"z": t(), "n": None, "s": "a"})]}
    ours, theirs = to_device(data, "meta"), operations.send_to_device(copy.copy(data), "meta")
    assert [p for p, _ in find_tensors(ours)] == [p for p, _ in find_tensors(theirs)]
    assert isinstance(to_device(nn.Linear(1, 1), "meta"), nn.Linear)
