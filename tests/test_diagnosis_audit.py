"""audit: everything that will fail, by its exact path, and nothing else."""

import functools
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from devicekit import audit
from devicekit.testing import Simulation


class Model(nn.Module):
    """A model to which the tests add their mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)


def found_in(model: nn.Module, *args: object, **kwargs: object) -> list[tuple[str, str]]:
    return [(one.kind, one.path) for one in audit(model, *args, **kwargs)]  # type: ignore[arg-type]


def test_a_clean_model_gives_an_empty_report() -> None:
    report = audit(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    assert not report
    assert list(report) == []
    assert str(report) == "Sequential: nothing that will fail"
    assert json.loads(report.json())["findings"] == []


def test_a_model_without_tensors() -> None:
    assert audit(nn.ReLU()).device is None


# What .to() leaves behind


class WithAttributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.pos = torch.ones(3)
        self.tables = {"sin": torch.ones(3), "limits": [torch.ones(2), 3]}
        self.blocks = [nn.Linear(3, 3), nn.ReLU()]
        self.prior = Normal(torch.zeros(3), torch.ones(3))
        self.criterion = functools.partial(nn.functional.cross_entropy, weight=torch.ones(3))
        self.scalar = torch.tensor(2.0)
        self.same = [self.fc, self.fc.weight]
        self.nothing: list[Tensor] = []


@pytest.mark.parametrize("name", ["layer", "0", "two words", "class", "ﬁne"])
@pytest.mark.parametrize("kind", [Model, nn.Sequential, nn.ModuleDict])
def test_the_path_of_a_layer_of_any_name_leads_to_it(kind: type[nn.Module], name: str) -> None:
    model, layer = kind(), Model()
    layer.pos = torch.ones(3)
    model.add_module(name, layer)
    (finding,) = audit(model)
    assert eval(finding.path, {"model": model}) is layer.pos


def test_the_fix_is_for_the_layer_that_holds_it() -> None:
    model = Model()
    model.position = Model()
    model.position.pos = torch.ones(3)
    (finding,) = audit(model)
    exec(finding.fix, {"model": model})
    assert dict(model.position.named_buffers()).keys() == {"pos"}
    assert not audit(model)


@pytest.mark.parametrize("device", ["cpu", "sim:0"])
def test_R059_R060_what_is_not_registered(device: str, simulated_accelerator: Simulation) -> None:
    model = nn.Sequential(WithAttributes()).to(device)
    assert found_in(model) == [
        ("attribute", "model[0].pos"),
        ("container", "model[0].tables['sin']"),
        ("container", "model[0].tables['limits'][0]"),
        ("layer", "model[0].blocks[0]"),
        ("container", "model[0].prior.loc"),
        ("container", "model[0].prior.scale"),
        ("container", "model[0].criterion.keywords['weight']"),
    ]


def test_what_was_moved_by_hand_is_no_mistake(simulated_accelerator: Simulation) -> None:
    model = Model().to("sim")
    model.pos = torch.ones(3, device="sim")
    model.blocks = [nn.Linear(3, 3).to("sim")]
    assert not audit(model)


def test_the_result_of_a_computation_is_no_mistake() -> None:
    model = Model()
    model.last = model.fc(torch.ones(3))
    assert not audit(model)


def test_fixes_of_what_is_not_registered() -> None:
    fixes = {one.path: one.fix for one in audit(WithAttributes())}
    assert fixes["model.pos"].startswith(
        'self.register_buffer("pos", torch.ones(3), persistent=False)  # instead of line '
    )
    assert fixes["model.blocks[0]"].startswith(
        "self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.ReLU()])  # instead of line "
    )
    late = Model()
    late.pos = torch.ones(3)
    (finding,) = audit(late)
    exec(finding.fix, {"model": late})
    assert "pos" in dict(late.named_buffers())
    assert not audit(late)


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_closures_of_hooks(register: str, simulated_accelerator: Simulation) -> None:
    def make() -> Callable[..., None]:
        noise = torch.ones(3)

        def add_noise(*args: object) -> None:
            noise.add_(1)

        return add_noise

    model = Model()
    getattr(model.fc, register)(make())
    model.to("sim")
    (finding,) = audit(model)
    assert finding.kind == "hook"
    assert finding.path.startswith(f"model.fc._{register.removeprefix('register_')}s[")
    assert "add_noise carries noise, float32[3]" in finding.what


# What is registered, and elsewhere


def test_R068_leftover_meta() -> None:
    model = Model()
    model.late = nn.Linear(3, 3, device="meta")
    (finding,) = audit(model)
    assert (finding.kind, finding.path, finding.device) == ("meta", "model.late", "meta")
    assert finding.fix.startswith('model.late.to_empty(device="cpu")')


def test_a_model_on_meta_is_a_mistake_only_where_another_device_is_demanded() -> None:
    model = Model().to("meta")
    assert not audit(model)
    assert found_in(model, device="cpu") == [("meta", "model")]


def test_R074_R066_several_devices(simulated_accelerator: Simulation) -> None:
    model = nn.ModuleDict({"body": nn.Linear(3, 3), "head": nn.Linear(3, 3)})
    model["extra"] = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model.to("sim:0")
    model["head"].to("sim:1")
    model["extra"][2].bias = nn.Parameter(torch.zeros(3))
    report = audit(model)
    assert [(one.kind, one.path, one.device) for one in report] == [
        ("device", "model['head']", "sim:1"),
        ("device", "model['extra'][2].bias", "cpu"),
    ]
    assert report.device == "sim:0"


def test_the_whole_model_elsewhere_is_one_finding(simulated_accelerator: Simulation) -> None:
    (finding,) = audit(Model(), device="sim:1")
    assert (finding.path, finding.device) == ("model", "cpu")
    assert finding.fix == 'model.to("sim:1")'


def test_R067_a_model_that_was_spread_on_purpose(simulated_accelerator: Simulation) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    model[1].to("sim")
    model.hf_device_map = {"0": "cpu", "1": "sim"}
    assert not audit(model)


def test_parameters_that_to_has_turned_into_tensors(simulated_accelerator: Simulation) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3)).to("sim")

    model = Scale()
    (finding,) = audit(model)
    assert (finding.kind, finding.path, finding.device) == ("detached", "model.weight", "sim:0")
    exec(finding.fix, {"model": model, "torch": torch})
    assert not audit(model)
    assert [name for name, _ in model.named_parameters()] == ["weight"]


def test_lazy_parameters_have_no_shape() -> None:
    assert not audit(nn.Sequential(nn.LazyLinear(2)))


# Optimizers


def test_R064_an_optimizer_of_other_parameters() -> None:
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    model.fc = nn.Linear(3, 3)
    report = audit(model, optimizer)
    assert [(one.kind, one.path) for one in report] == [
        ("optimizer", "optimizer.param_groups[0]['params'][0]"),
        ("optimizer", "optimizer.param_groups[0]['params'][1]"),
    ]
    assert "is not model.fc.weight any more" in next(iter(report)).what


def test_an_optimizer_of_several_models_is_no_mistake() -> None:
    model, other = Model(), Model()
    optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()])
    assert not audit(model, optimizer)
    frozen = Model()
    frozen.requires_grad_(False)
    assert not audit(frozen, torch.optim.Adam(other.parameters()))


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad])
def test_R064_state_elsewhere(
    kind: type[torch.optim.Optimizer], simulated_accelerator: Simulation
) -> None:
    model = Model()
    optimizer = kind(model.parameters())
    model.fc(torch.ones(3)).sum().backward()
    optimizer.step()
    assert not audit(model, optimizer)
    model.to("sim")
    report = audit(model, optimizer)
    name = "exp_avg" if kind is torch.optim.Adam else "sum"
    assert f"optimizer.state[model.fc.weight][{name!r}]" in {one.path for one in report}
    assert {one.kind for one in report} == {"state"}


# Ties


def test_R019_a_broken_tie() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    assert not audit(model)
    model["head"].weight = nn.Parameter(model["embedding"].weight.detach().clone())
    (finding,) = audit(model)
    assert (finding.kind, finding.path) == ("tie", "model['head'].weight")
    exec(finding.fix, {"model": model})
    assert model["head"].weight is model["embedding"].weight


# The report


def test_the_report_line_by_line() -> None:
    model = Model()
    model.pos = torch.ones(3)
    model.late = nn.Linear(3, 3, device="meta")
    assert str(audit(model)).splitlines() == [
        "Model: 2 things that will fail",
        "",
        "  meta  model.late         Linear: 2 parameters: there is no data in it",
        '  fix: model.late.to_empty(device="cpu")  # then load or initialise its values',
        "",
        "  cpu   model.pos          plain attribute of Model: .to() leaves it behind",
        '  fix: model.register_buffer("pos", model.__dict__.pop("pos"), persistent=False)',
    ]


def test_the_report_as_json() -> None:
    model = Model()
    model.pos = torch.ones(3)
    assert json.loads(audit(model).json()) == {
        "version": 1,
        "model": "Model",
        "device": "cpu",
        "findings": [
            {
                "kind": "attribute",
                "path": "model.pos",
                "device": "cpu",
                "what": "plain attribute of Model: .to() leaves it behind",
                "fix": 'model.register_buffer("pos", model.__dict__.pop("pos"), persistent=False)',
            }
        ],
    }


def test_audit_runs_nothing() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 1)

        @property
        def costly(self) -> Tensor:
            raise AssertionError("computed")

        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("called")

    assert not audit(Careful())


@pytest.mark.parametrize("wrong", [None, torch.ones(2), nn.Linear])
def test_audit_refuses_what_is_no_model(wrong: object) -> None:
    with pytest.raises(TypeError, match=r"^`model` must be a module, but is "):
        audit(wrong)  # type: ignore[arg-type]


def test_audit_refuses_what_is_no_optimizer() -> None:
    with pytest.raises(TypeError, match=r"^`optimizer` must be an optimizer or None, but is 3"):
        audit(nn.Linear(1, 1), 3)  # type: ignore[arg-type]
