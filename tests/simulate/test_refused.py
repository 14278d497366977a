"""Mixes of devices that CUDA refuses: each raises, in CUDA's words."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from comparing import refused
from torch import nn

from devicekit.testing import simulate

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def there(*size, **options):
    return torch.ones(*size, device=DEVICE, **options)


def index(*values):
    return torch.tensor(values)


REFUSED = {
    "add_1d": lambda: there(3) + torch.ones(3),
    "radd_1d": lambda: torch.ones(3) + there(3),
    "iadd_dev_cpu": lambda: there(3).add_(torch.ones(3)),
    "iadd_cpu_dev": lambda: torch.ones(3).add_(there(3)),
    "iadd_cpu0_dev0": lambda: torch.tensor(1.0).add_(torch.tensor(1.0, device=DEVICE)),
    "iadd_cpu_dev0": lambda: torch.ones(3).add_(torch.tensor(1.0, device=DEVICE)),
    "cpu1d_plus_dev0": lambda: torch.ones(3) + torch.tensor(1.0, device=DEVICE),
    "cmp_1d": lambda: there(3) == torch.ones(3),
    "shape1_not_0dim": lambda: there(3) * torch.ones(1),
    "mm": lambda: there(2, 2) @ torch.ones(2, 2),
    "mm_rev": lambda: torch.ones(2, 2) @ there(2, 2),
    "bmm": lambda: torch.bmm(there(1, 2, 2), torch.ones(1, 2, 2)),
    "mv_dot": lambda: torch.dot(there(2), torch.ones(2)),
    "addmm": lambda: torch.addmm(torch.ones(2, 2), there(2, 2), there(2, 2)),
    "einsum": lambda: torch.einsum("ij,jk->ik", there(2, 2), torch.ones(2, 2)),
    "outer": lambda: torch.outer(there(2), torch.ones(2)),
    "linear_input_cpu": lambda: nn.Linear(3, 4).to(DEVICE)(torch.ones(2, 3)),
    "linear_weight_cpu": lambda: nn.Linear(3, 4)(there(2, 3)),
    "linear_bias_cpu": lambda: F.linear(there(2, 3), there(4, 3), torch.ones(4)),
    "linear_3d_input_cpu": lambda: nn.Linear(3, 4).to(DEVICE)(torch.ones(2, 5, 3)),
    "linear_nobias": lambda: F.linear(torch.ones(2, 3), there(4, 3)),
    "conv_input_cpu": lambda: nn.Conv2d(1, 2, 3).to(DEVICE)(torch.ones(1, 1, 5, 5)),
    "conv_weight_cpu": lambda: nn.Conv2d(1, 2, 3)(there(1, 1, 5, 5)),
    "conv_bias_cpu": lambda: F.conv2d(there(1, 1, 5, 5), there(2, 1, 3, 3), torch.ones(2)),
    "conv1d_input_cpu": lambda: nn.Conv1d(1, 2, 3).to(DEVICE)(torch.ones(1, 1, 5)),
    "embedding_idx_cpu": lambda: nn.Embedding(5, 2).to(DEVICE)(index(1, 2)),
    "embedding_weight_cpu": lambda: nn.Embedding(5, 2)(index(1, 2).to(DEVICE)),
    "bn_input_cpu": lambda: nn.BatchNorm1d(3).to(DEVICE)(torch.ones(4, 3)),
    "bn_eval_stats_cpu": lambda: F.batch_norm(there(4, 3), torch.ones(3), torch.ones(3)),
    "layernorm_w_cpu": lambda: F.layer_norm(there(2, 3), (3,), torch.ones(3), torch.ones(3)),
    "layernorm_in_cpu": lambda: nn.LayerNorm(3).to(DEVICE)(torch.ones(2, 3)),
    "groupnorm_in_cpu": lambda: nn.GroupNorm(1, 2).to(DEVICE)(torch.ones(2, 2, 3)),
    "prelu_w": lambda: nn.PReLU()(there(2, 3)),
    "lstm_input_cpu": lambda: nn.LSTM(3, 4).to(DEVICE)(torch.ones(5, 1, 3)),
    "lstm_hidden_cpu": lambda: nn.LSTM(3, 4).to(DEVICE)(
        there(5, 1, 3), (torch.zeros(1, 1, 4), torch.zeros(1, 1, 4))
    ),
    "lstm_weights_cpu": lambda: nn.LSTM(3, 4)(there(5, 1, 3)),
    "gru_hidden_cpu": lambda: nn.GRU(3, 4).to(DEVICE)(there(5, 1, 3), torch.zeros(1, 1, 4)),
    "lstmcell_h_cpu": lambda: nn.LSTMCell(3, 4).to(DEVICE)(
        there(1, 3), (torch.zeros(1, 4), torch.zeros(1, 4))
    ),
    "transformer_in_cpu": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(DEVICE)(
        torch.randn(2, 3, 8)
    ),
    "transformer_eval_in_cpu": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        .eval()
        .to(DEVICE)(torch.randn(2, 3, 8))
    ),
    "mha_mask_cpu": lambda: nn.MultiheadAttention(8, 2, batch_first=True).to(DEVICE)(
        *[torch.randn(2, 3, 8, device=DEVICE)] * 3,
        key_padding_mask=torch.zeros(2, 3, dtype=torch.bool),
    ),
    "sdpa_k_cpu": lambda: F.scaled_dot_product_attention(
        there(1, 2, 3, 4), torch.ones(1, 2, 3, 4), there(1, 2, 3, 4)
    ),
    "sdpa_mask_cpu": lambda: F.scaled_dot_product_attention(
        there(1, 2, 3, 4), there(1, 2, 3, 4), there(1, 2, 3, 4), attn_mask=torch.ones(3, 3)
    ),
    "ce_target_cpu": lambda: F.cross_entropy(there(2, 3), index(0, 1)),
    "ce_input_cpu": lambda: F.cross_entropy(torch.ones(2, 3), index(0, 1).to(DEVICE)),
    "ce_weight_cpu": lambda: nn.CrossEntropyLoss(weight=torch.ones(3))(
        there(2, 3), index(0, 1).to(DEVICE)
    ),
    "ce_softtarget_cpu": lambda: F.cross_entropy(there(2, 3), torch.ones(2, 3) / 3),
    "nll_target_cpu": lambda: F.nll_loss(there(2, 3), index(0, 1)),
    "mse_target_cpu": lambda: F.mse_loss(there(3), torch.ones(3)),
    "l1_target_cpu": lambda: F.l1_loss(there(3), torch.ones(3)),
    "smoothl1_target_cpu": lambda: F.smooth_l1_loss(there(3), torch.ones(3)),
    "bce_target_cpu": lambda: F.binary_cross_entropy(there(3) * 0.5, torch.ones(3)),
    "bcel_posw_cpu": lambda: F.binary_cross_entropy_with_logits(
        there(2, 3), there(2, 3), pos_weight=torch.ones(3)
    ),
    "kl_target_cpu": lambda: F.kl_div(there(3), torch.ones(3), reduction="sum"),
    "cat": lambda: torch.cat([there(2), torch.ones(2)]),
    "cat_rev": lambda: torch.cat([torch.ones(2), there(2)]),
    "stack": lambda: torch.stack([there(2), torch.ones(2)]),
    "cat_0dim_stack": lambda: torch.stack([torch.tensor(1.0, device=DEVICE), torch.tensor(1.0)]),
    "index_cpu_by_dev": lambda: torch.ones(3)[index(0).to(DEVICE)],
    "boolmask_cpu_by_dev": lambda: torch.ones(3)[there(3) > 0],
    "index_put_cpu_self": lambda: torch.ones(3).__setitem__(index(0).to(DEVICE), 1.0),
    "index_put_values_cpu": lambda: there(3).__setitem__(index(0, 1).to(DEVICE), torch.ones(2)),
    "mask_assign_values_cpu": lambda: there(3).__setitem__(there(3) > 0, torch.ones(3)),
    "gather_idx_cpu": lambda: there(2, 2).gather(1, torch.zeros(2, 1, dtype=torch.long)),
    "scatter_idx_cpu": lambda: there(2, 2).scatter(1, torch.zeros(2, 1, dtype=torch.long), 1.0),
    "scatter_src_cpu": lambda: there(2, 2).scatter(
        1, torch.zeros(2, 1, dtype=torch.long, device=DEVICE), torch.ones(2, 1)
    ),
    "index_select_idx_cpu": lambda: there(2, 2).index_select(0, index(0)),
    "index_add_src_cpu": lambda: there(2, 2).index_add(0, index(0).to(DEVICE), torch.ones(1, 2)),
    "index_add_idx_cpu": lambda: there(2, 2).index_add(0, index(0), there(1, 2)),
    "take_idx_cpu": lambda: there(2, 2).take(index(0)),
    "masked_fill_mask_cpu": lambda: there(3).masked_fill(torch.ones(3) > 0, 0.0),
    "masked_select_mask_cpu": lambda: there(3).masked_select(torch.ones(3) > 0),
    "masked_scatter_src_cpu": lambda: there(3).masked_scatter(there(3) > 0, torch.ones(3)),
    "index_copy_src_cpu": lambda: there(3).index_copy(0, index(0).to(DEVICE), torch.ones(1)),
    "where_1d_self_cpu": lambda: torch.where(there(3) > 0, torch.ones(3), there(3)),
    "where_cond_cpu": lambda: torch.where(torch.ones(3) > 0, there(3), there(3)),
    "where_other_cpu": lambda: torch.where(there(3) > 0, there(3), torch.ones(3)),
    "clamp_cpu0_tensor": lambda: torch.clamp(there(3), max=torch.tensor(2.0)),
    "gcd_cpu0": lambda: torch.gcd(there(3, dtype=torch.long), torch.tensor(2)),
    "clamp_tensor_cpu": lambda: torch.clamp(there(3), min=torch.ones(3)),
    "maximum": lambda: torch.maximum(there(3), torch.ones(3)),
    "lerp": lambda: torch.lerp(there(3), torch.ones(3), 0.5),
    "addcmul": lambda: torch.addcmul(there(3), there(3), torch.ones(3)),
    "pow": lambda: there(3) ** torch.ones(3),
    "atan2": lambda: torch.atan2(there(3), torch.ones(3)),
    "fmod": lambda: torch.fmod(there(3), torch.ones(3)),
    "logical_and": lambda: torch.logical_and(there(3) > 0, torch.ones(3) > 0),
    "bitand": lambda: (there(3) > 0) & (torch.ones(3) > 0),
    "isclose": lambda: torch.isclose(there(3), torch.ones(3)),
    "allclose": lambda: torch.allclose(there(3), torch.ones(3)),
    "equal": lambda: torch.equal(there(3), torch.ones(3)),
    "isin": lambda: torch.isin(there(3), torch.ones(2)),
    "searchsorted": lambda: torch.searchsorted(there(3), torch.ones(2)),
    "bucketize": lambda: torch.bucketize(there(3), torch.ones(2)),
    "cdist": lambda: torch.cdist(there(2, 2), torch.ones(2, 2)),
    "cross": lambda: torch.cross(there(1, 3), torch.ones(1, 3), dim=1),
    "solve": lambda: torch.linalg.solve(torch.eye(2, device=DEVICE), torch.ones(2, 2)),
    "baddbmm": lambda: torch.baddbmm(there(1, 2, 2), there(1, 2, 2), torch.ones(1, 2, 2)),
    "grid_sample": lambda: F.grid_sample(
        there(1, 1, 2, 2), torch.zeros(1, 2, 2, 2), align_corners=False
    ),
    "bincount_w": lambda: torch.bincount(index(0, 1).to(DEVICE), weights=torch.ones(2)),
    "dropoutless_cosine": lambda: F.cosine_similarity(there(2, 3), torch.ones(2, 3)),
    "bilinear": lambda: nn.Bilinear(2, 2, 2).to(DEVICE)(there(1, 2), torch.ones(1, 2)),
    "embbag": lambda: F.embedding_bag(index(0, 1), there(3, 2), index(0)),
    "complex": lambda: torch.complex(there(2), torch.ones(2)),
    "polar": lambda: torch.polar(there(2), torch.ones(2)),
    "out_cpu": lambda: torch.add(there(3), there(3), out=torch.ones(3)),
    "out_mm_cpu": lambda: torch.mm(there(2, 2), there(2, 2), out=torch.ones(2, 2)),
    "grad_assign": lambda: setattr(there(3, requires_grad=True), "grad", torch.ones(3)),
    "backward_grad_cpu": lambda: (there(3, requires_grad=True) * 2).backward(torch.ones(3)),
    "generator_cpu": lambda: torch.randn(3, device=DEVICE, generator=torch.Generator()),
    "opt_manual_sgd": lambda: there(3, requires_grad=True).data.sub_(torch.ones(3) * 0.1),
    "normal_mean_cpu": lambda: torch.normal(torch.ones(3), there(3)),
    "foreach_add": lambda: torch._foreach_add([there(2)], [torch.ones(2)]),
    "multinomial_free_hist": lambda: torch.histogram(there(4), bins=torch.ones(3)),
    "metric_compare": lambda: (there(4).argmax() == index(1, 2, 3)).sum(),
    "set_cross": lambda: there(2).set_(torch.ones(2)),
    "spmm_dense": lambda: torch.sparse.mm(
        torch.eye(2, device=DEVICE).to_sparse(), torch.ones(2, 2)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    refused(REFUSED[name])


# The first lines that people posted from real GPUs, and the arguments they name.
EXACT = (
    "Expected all tensors to be on the same device, but got {} is on cpu, different from other "
    "tensors on sim:0 (when checking argument in method wrapper_CUDA_{})"
)
ITERATOR = (
    "Expected all tensors to be on the same device, but found at least two devices, sim:0 and cpu!"
)
WORDS = {
    "add_1d": ITERATOR,
    "radd_1d": ITERATOR,
    "mm": EXACT.format("mat2", "mm"),
    "linear_input_cpu": EXACT.format("mat1", "addmm"),
    "cat": EXACT.format("tensors", "cat"),
    "ce_target_cpu": EXACT.format("target", "nll_loss_forward"),
    "ce_weight_cpu": EXACT.format("weight", "nll_loss_forward"),
    "layernorm_w_cpu": EXACT.format("weight", "_native_layer_norm"),
    "clamp_cpu0_tensor": EXACT.format("max", "clamp_Tensor"),
    "index_select_idx_cpu": EXACT.format("index", "_index_select"),
    "index_cpu_by_dev": (
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
    ),
    "masked_fill_mask_cpu": (
        "expected self and mask to be on the same device, but got mask on cpu and self on sim:0"
    ),
    "generator_cpu": "Expected a 'sim' device type for generator but found 'cpu'",
}


@pytest.mark.parametrize("name", WORDS)
def test_first_line_is_cudas(name):
    assert refused(REFUSED[name]).splitlines()[0] == WORDS[name]


def test_second_line_names_operator_and_devices():
    text = refused(lambda: nn.Linear(3, 2).to(DEVICE)(torch.ones(4, 3)))
    expected = "  op: aten::addmm(self: sim:0 [2], mat1: cpu [4, 3], mat2: sim:0 [3, 2])"
    assert text.splitlines()[1:] == [expected]


def test_optimizer_state_left_behind():
    for optimizer in (torch.optim.Adam, lambda p: torch.optim.SGD(p, 0.1, 0.9, foreach=False)):
        p = nn.Parameter(torch.ones(3))
        running = optimizer([p])
        p.grad = torch.ones(3)
        running.step()
        p.data = p.data.to(DEVICE)
        p.grad = there(3)
        refused(running.step)


class ForgottenBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 3), torch.ones(3)

    def forward(self, x):
        return self.linear(x) * self.scale


class MadeInForward(nn.Module):
    def forward(self, x):
        return x + torch.arange(x.shape[1]).float()


class LayersInList(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3)]

    def forward(self, x):
        return self.layers[0](x)


@pytest.mark.parametrize("module", [ForgottenBuffer, MadeInForward, LayersInList])
def test_typical_mistakes(module):
    refused(lambda: module().to(DEVICE)(there(2, 3)))


def test_parameters_assigned_from_the_cpu():
    layer = nn.Linear(3, 3).to(DEVICE)
    layer.load_state_dict(nn.Linear(3, 3).state_dict(), assign=True)
    refused(lambda: layer(there(1, 3)))


def test_two_devices():
    other = torch.ones(3, 3, device="sim:1")
    for call in (
        lambda: there(3, 3) + other,
        lambda: F.linear(there(2, 3), other),
        lambda: torch.cat([there(1, 3), other]),
        lambda: there(3) + torch.tensor(1.0, device="sim:1"),
    ):
        assert "sim:0" in (text := refused(call))
        assert "sim:1" in text


def test_meta_is_another_device():
    refused(lambda: there(3) + torch.ones(3, device="meta"))


def test_pinning_a_device_tensor():
    refused(lambda: there(2).pin_memory(), match="only dense CPU tensors can be pinned")


def test_too_many_cpu_scalars():
    scalar = torch.tensor(2.0)
    refused(lambda: torch.addcmul(there(3), scalar, scalar), match="too many CPU scalars")


@pytest.mark.parametrize("name", ["rand", "normal_", "randperm", "multinomial", "bernoulli"])
def test_device_generator_for_the_cpu(name):
    g = torch.Generator(DEVICE)
    calls = {
        "rand": lambda: torch.rand(3, generator=g),
        "normal_": lambda: torch.empty(3).normal_(generator=g),
        "randperm": lambda: torch.randperm(3, generator=g),
        "multinomial": lambda: torch.multinomial(torch.ones(3), 1, generator=g),
        "bernoulli": lambda: torch.bernoulli(torch.ones(3), generator=g),
    }
    text = refused(calls[name])
    assert text == "Expected a 'cpu' device type for generator but found 'sim'"


def test_random_split_with_a_device_generator():
    data, g = list(range(4)), torch.Generator(DEVICE)
    refused(lambda: torch.utils.data.random_split(data, [2, 2], generator=g), match="generator")


@pytest.mark.parametrize("name", ["sim", "cuda"])
@pytest.mark.parametrize(
    "fail",
    [
        lambda name: torch.ones(2, device=name) + torch.ones(2),
        lambda name: torch.ones(2, 2, device=name) @ torch.ones(2, 2),
        lambda name: torch.ones(2, 2, device=name) @ torch.ones(3, 2, device=name),
        lambda name: torch.ones(2, device=f"{name}:7"),
        lambda name: torch.ones(2000, device=name),
    ],
    ids=["iterator", "exact", "shapes", "index", "memory"],
)
def test_a_failing_test_shows_the_users_line(fail: Callable[[str], object], name: str) -> None:
    with simulate(name, memory=1000), pytest.raises(RuntimeError) as caught:
        fail(name)
    shown = caught.traceback.filter(caught)
    assert shown[-1].path == Path(__file__)
