"""Mixes of devices that CUDA takes: each works, with the right value on the right device."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from comparing import close, on
from torch import nn

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def there(*size, **options):
    return torch.ones(*size, device=DEVICE, **options)


def index(*values):
    return torch.tensor(values)


def scalar(value=2.0):
    return torch.tensor(value)


ALLOWED = {
    "dev_plus_cpu0": lambda: (there(3) + scalar(), torch.full((3,), 3.0)),
    "cpu0_plus_dev": lambda: (scalar() + there(3), torch.full((3,), 3.0)),
    "dev_mul_cpu0": lambda: (there(3) * scalar(), torch.full((3,), 2.0)),
    "iadd_cpu0": lambda: (there(3).add_(scalar()), torch.full((3,), 3.0)),
    "dev0_plus_cpu0": lambda: (torch.tensor(1.0, device=DEVICE) + scalar(), scalar(3.0)),
    "cpu0_plus_dev0": lambda: (scalar() + torch.tensor(1.0, device=DEVICE), scalar(3.0)),
    "cmp_cpu0": lambda: (there(3) < scalar(), torch.ones(3, dtype=torch.bool)),
    "div_cpu0": lambda: (there(3) / scalar(), torch.full((3,), 0.5)),
    "rdiv_cpu0": lambda: (scalar() / there(3), torch.full((3,), 2.0)),
    "pow_cpu0": lambda: (there(3) ** scalar(), torch.ones(3)),
    "rpow_cpu0": lambda: (scalar() ** there(3), torch.full((3,), 2.0)),
    "maximum_cpu0": lambda: (torch.maximum(there(3), scalar()), torch.full((3,), 2.0)),
    "floordiv_cpu0": lambda: (there(3) // scalar(), torch.zeros(3)),
    "atan2_cpu0": lambda: (torch.atan2(there(3), scalar()), torch.atan2(torch.ones(3), scalar())),
    "sub_alpha_cpu0": lambda: (torch.sub(there(3), scalar(), alpha=2), torch.full((3,), -3.0)),
    "logical_cpu0": lambda: (
        torch.logical_and(there(3) > 0, torch.tensor(True)),
        torch.ones(3, dtype=torch.bool),
    ),
    "where_cpu0_other": lambda: (
        torch.where(there(3) > 0, scalar(), there(3)),
        torch.full((3,), 2.0),
    ),
    "where_both_cpu0": lambda: (
        torch.where(there(3) > 0, scalar(), scalar(0.0)),
        torch.full((3,), 2.0),
    ),
    "where_scalar": lambda: (torch.where(there(3) > 0, 5.0, there(3)), torch.full((3,), 5.0)),
    "masked_fill_cpu0_value": lambda: (
        there(3).masked_fill(there(3) > 0, scalar()),
        torch.full((3,), 2.0),
    ),
    "fill_cpu0": lambda: (there(3).fill_(scalar()), torch.full((3,), 2.0)),
    "lerp_scalar_weight": lambda: (torch.lerp(there(3), there(3) * 3, 0.5), torch.full((3,), 2.0)),
    "index_fill_cpu0_value": lambda: (
        there(3).index_fill(0, index(0).to(DEVICE), scalar()),
        torch.tensor([2.0, 1, 1]),
    ),
    "dev_index_by_cpu": lambda: (
        torch.arange(4.0, device=DEVICE)[index(2, 0)],
        torch.tensor([2.0, 0.0]),
    ),
    "dev_index_by_cpu_mask": lambda: (
        torch.arange(4.0, device=DEVICE)[torch.tensor([True, False, False, True])],
        torch.tensor([0.0, 3.0]),
    ),
    "dev_index_by_cpu_2d": lambda: (
        torch.arange(4.0, device=DEVICE).view(2, 2)[:, index(1)],
        torch.tensor([[1.0], [3.0]]),
    ),
    "setitem_cpu_idx_scalar": lambda: (
        (lambda x: (x.__setitem__(index(1), 7.0), x)[1])(there(3)),
        torch.tensor([1.0, 7, 1]),
    ),
    "setitem_slice_cpu_value": lambda: (
        (lambda x: (x.__setitem__(slice(0, 2), torch.tensor([5.0, 6.0])), x)[1])(there(3)),
        torch.tensor([5.0, 6, 1]),
    ),
    "setitem_mask_cpu0_value": lambda: (
        (lambda x: (x.__setitem__(x > 0, scalar()), x)[1])(there(3)),
        torch.full((3,), 2.0),
    ),
    "index_put_cpu0_value": lambda: (
        there(3).index_put((index(0).to(DEVICE),), scalar()),
        torch.tensor([2.0, 1, 1]),
    ),
    "copy_cross": lambda: (torch.zeros(3, device=DEVICE).copy_(torch.ones(3)), torch.ones(3)),
    "copy_bcast_cross": lambda: (
        torch.zeros(2, 3, device=DEVICE).copy_(torch.ones(3)),
        torch.ones(2, 3),
    ),
    "python_scalar": lambda: (there(3) + 1, torch.full((3,), 2.0)),
    "np_scalar": lambda: (there(3) * np.float32(2.0), torch.full((3,), 2.0)),
    "foreach_mul_cpu0_tensor": lambda: (
        torch._foreach_mul([there(3)], scalar())[0],
        torch.full((3,), 2.0),
    ),
    "foreach_copy_cross": lambda: (
        (lambda x: (torch._foreach_copy_([x], [torch.ones(3) * 4]), x)[1])(there(3)),
        torch.full((3,), 4.0),
    ),
    "repeat_interleave_int": lambda: (torch.repeat_interleave(there(2), 2), torch.ones(4)),
    "clip_coef_0dim_cross_dev_mul_": lambda: (there(3).mul_(scalar(0.5)), torch.full((3,), 0.5)),
    "tensor_split_cpu_idx": lambda: (
        torch.tensor_split(torch.arange(4.0, device=DEVICE), index(1, 3))[1],
        torch.tensor([1.0, 2.0]),
    ),
    "pack_lengths_cpu": lambda: (
        nn.utils.rnn.pack_padded_sequence(there(2, 3, 1), index(3, 2), batch_first=True).data,
        torch.ones(5, 1),
    ),
    "bernoulli_cpu0": lambda: (there(3).bernoulli_(torch.tensor(1.0)), torch.ones(3)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    found, expected = ALLOWED[name]()
    on(DEVICE, found)
    close(found, expected)


def test_adam_keeps_its_step_on_the_cpu():
    p = nn.Parameter(there(3))
    optimizer = torch.optim.Adam([p], foreach=True)
    p.grad = there(3)
    optimizer.step()
    on("cpu", optimizer.state[p]["step"])


def test_ctc_lengths_on_the_cpu():
    scores = torch.randn(6, 1, 4, device=DEVICE).log_softmax(2)
    targets = torch.randint(1, 4, (1, 2), device=DEVICE)
    assert F.ctc_loss(scores, targets, index(6), index(2)).isfinite()


def test_gradient_of_a_cpu_scalar():
    s = torch.tensor(2.0, requires_grad=True)
    (there(3) * s).sum().backward()
    on("cpu", s.grad)
    assert s.grad.item() == 3.0


def test_running_loss_that_began_on_the_cpu():
    total = torch.tensor(0.0)
    total = total + there(3).mean()
    on(DEVICE, total)


def test_comparison_with_a_cpu_scalar():
    assert (there(3).sum() == torch.tensor(3.0)).item()
