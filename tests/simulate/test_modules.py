"""Modules and parameters: what `.to` keeps, and what it changes."""

import copy
import weakref

import pytest
import torch
from comparing import close, on
from torch import nn

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def there(*size, **options):
    return torch.ones(*size, device=DEVICE, **options)


def test_to_keeps_parameters():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    parameters = list(module.parameters())
    values = [p.detach().clone() for p in parameters]
    module.to(DEVICE)
    assert [id(p) for p in module.parameters()] == [id(p) for p in parameters]
    for p, value in zip(parameters, values, strict=True):
        on(DEVICE, p)
        close(p, value)
        assert p.is_leaf
        assert p.requires_grad
        assert isinstance(p, nn.Parameter)
    on(DEVICE, *module.buffers())


def test_to_keeps_attributes_hooks_and_weak_references():
    p = nn.Parameter(torch.ones(2))
    p.tag, seen = "mine", []
    handle = p.register_hook(lambda grad: seen.append(grad.device))
    p.register_post_accumulate_grad_hook(lambda x: seen.append(x.device))
    reference = weakref.ref(p)
    layer = nn.Module()
    layer.p = p
    layer.to(DEVICE)
    assert p.tag == "mine"
    assert reference() is p
    p.sum().backward()
    assert seen == [torch.device(DEVICE)] * 2
    handle.remove()
    p.sum().backward()
    assert len(seen) == 3


def test_optimizer_made_before_the_move():
    layer = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer.to(DEVICE)
    before = layer.weight.detach().cpu().clone()
    layer(there(2, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, layer.weight.detach().cpu())


def test_there_and_back():
    layer = nn.Linear(3, 1).to(DEVICE)
    layer(there(1, 3)).sum().backward()
    layer.to("cpu")
    on("cpu", layer.weight, layer.weight.grad)
    layer(torch.ones(1, 3)).sum().backward()
    close(layer.weight.grad, torch.full((1, 3), 2.0))


@pytest.mark.parametrize("flag", ["swap_module_params", "overwrite_module_params"])
def test_other_ways_of_conversion(flag):
    switch = getattr(torch.__future__, f"set_{flag}_on_conversion")
    switch(True)
    try:
        layer = nn.Linear(3, 4)
        weight = layer.weight
        layer.to(DEVICE)
        assert (layer.weight is weight) == (flag == "swap_module_params")
        layer(there(1, 3)).sum().backward()
        on(DEVICE, layer.weight, layer.weight.grad)
    finally:
        switch(False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def test_ties():
    module = Tied().to(DEVICE)
    assert module.embed.weight is module.head.weight
    module(torch.tensor([1], device=DEVICE)).sum().backward()
    on(DEVICE, module.embed.weight.grad)


def test_data_across_devices():
    p = nn.Parameter(torch.ones(3))
    p.data = p.data.to(DEVICE)
    (p * 2).sum().backward()
    on(DEVICE, p, p.grad)
    p.data.mul_(3)
    p.data.clamp_(max=2)
    assert p.sum().item() == 6


def test_data_while_a_view_is_alive_is_refused():
    p = torch.ones(3)
    view = p[1:]
    with pytest.raises(RuntimeError, match="while a view of it or a graph made from it is alive"):
        p.data = p.data.to(DEVICE)
    del view
    p.data = p.data.to(DEVICE)
    on(DEVICE, p)


def test_stale_graph_is_refused():
    layer = nn.Linear(2, 1)
    loss = layer(torch.ones(1, 2)).sum()
    layer.to(DEVICE)
    with pytest.raises(RuntimeError, match="before one of its parameters changed its device"):
        loss.backward()


def test_deepcopy():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(DEVICE)
    module[1].weight = module[0].weight
    copied = copy.deepcopy(module)
    on(DEVICE, *copied.parameters(), copy.deepcopy(there(2)))
    assert copied[1].weight is copied[0].weight
    copied[0].weight.data.zero_()
    assert module[0].weight.abs().sum().item() > 0


def test_state_dict_across_devices():
    layer = nn.Linear(3, 4).to(DEVICE)
    state = layer.state_dict()
    on(DEVICE, state["weight"])
    host = nn.Linear(3, 4)
    host.load_state_dict(state)
    on("cpu", host.weight)
    close(host.weight, layer.weight)
    layer.load_state_dict(nn.Linear(3, 4).state_dict())
    on(DEVICE, layer.weight)
    layer.load_state_dict(host.state_dict(), assign=True)
    on("cpu", layer.weight)


def test_to_empty():
    with torch.device("meta"):
        layer = nn.Linear(3, 4)
    layer.to_empty(device=DEVICE)
    nn.init.ones_(layer.weight)
    on(DEVICE, layer.weight)
    assert layer.weight.sum().item() == 12


def test_to_device_and_dtype():
    layer = nn.Linear(3, 4).to(DEVICE, torch.bfloat16)
    on(DEVICE, layer.weight)
    assert layer(there(1, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


INITS = {
    "xavier_uniform_": nn.init.xavier_uniform_,
    "kaiming_normal_": nn.init.kaiming_normal_,
    "orthogonal_": nn.init.orthogonal_,
    "trunc_normal_": nn.init.trunc_normal_,
    "zeros_": nn.init.zeros_,
}


@pytest.mark.parametrize("name", INITS)
def test_init(name):
    on(DEVICE, INITS[name](torch.empty(4, 5, device=DEVICE)))


@pytest.mark.parametrize("name", ["weight_norm", "spectral_norm"])
def test_parametrizations(name):
    layer = getattr(nn.utils.parametrizations, name)(nn.Linear(3, 4)).to(DEVICE)
    layer(there(1, 3)).sum().backward()
    on(DEVICE, *[p.grad for p in layer.parameters()])


def test_hooks():
    seen = []
    layer = nn.Linear(2, 2).to(DEVICE)
    layer.register_forward_hook(lambda module, args, out: seen.append(out.device))
    layer.weight.register_hook(lambda grad: seen.append(grad.device))
    layer.register_full_backward_hook(lambda module, gi, go: seen.append(go[0].device))
    layer(there(1, 2, requires_grad=True)).sum().backward()
    assert seen == [torch.device(DEVICE)] * 3
