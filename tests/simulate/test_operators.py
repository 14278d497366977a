"""Operators: on the device what they give on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from comparing import close, on, refused, same_as_cpu

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def grid(d):
    return torch.arange(12.0, device=d).view(3, 4)


def indexing(d):
    x, two = grid(d), torch.tensor([0, 1], device=d)
    return [
        x[0], x[:, 1:], x[..., None], x[x > 5], x[[0, 2]], x[two], x[:, two], x[-1, -1], x[::2],
        x[None, 0],
    ]  # fmt: skip


def setting(d):
    x = grid(d)
    x[0] = 1.0
    x[:, 1] = torch.ones(3, device=d)
    x[x > 8] = 0.0
    x[torch.tensor([2], device=d)] = 5.0
    return x


def views(d):
    x = grid(d)
    return [
        x.view(4, 3), x.t(), x.t().contiguous(), x.reshape(-1), x.t().reshape(-1), x.permute(1, 0),
        x.unsqueeze(0), x.expand(2, 3, 4), x.flatten(), x.unfold(1, 2, 1), x.diagonal(),
        x.narrow(1, 0, 2), *x.chunk(2), *x.split(2), x.movedim(0, 1), x.squeeze(),
        torch.as_strided(x, (2, 2), (1, 2)), x.view(torch.int32),
    ]  # fmt: skip


def writing_through_views(d):
    x = grid(d)
    x[0].fill_(9)
    x.t()[1].zero_()
    x.view(-1)[5:7].mul_(2)
    x.view(torch.int32)[2, 3] = 0
    return x


def in_place(d):
    x = grid(d)
    x.add_(1).mul_(2).clamp_(3, 9).sqrt_().t_().unsqueeze_(0).squeeze_().transpose_(0, 1)
    return x.masked_fill_(x > 2.9, 0)


def out_argument(d):
    a, b, ones = torch.empty(3, device=d), torch.empty(0, device=d), torch.ones(2, 2, device=d)
    c = torch.empty(2, 2, device=d)
    view = c[0]
    torch.add(view, 2, out=view)
    c[1] = 1
    view.fill_(3)
    return [torch.add(torch.ones(3, device=d), 2, out=a), a, torch.mm(ones, ones, out=b), b, c]


def resizing(d):
    x, y = torch.empty(2, device=d), torch.arange(6.0, device=d)
    return [x.resize_(4, 4).fill_(2), y.resize_(2, 2), torch.arange(4.0, device=d).resize_(2)]


def set_storage(d):
    x, y = torch.empty(2, device=d), torch.arange(4.0, device=d)
    shared = torch.empty(0, device=d).set_(y.untyped_storage(), 1, (2,), (2,))
    y[1] = 7
    return [x.set_(y), shared, torch.ones(3, device=d).set_()]


def joining(d):
    x = torch.ones(2, 2, device=d)
    return [torch.cat([x, x]), torch.stack([x, x]), torch.hstack([x, x]), torch.block_diag(x, x)]


def reductions(d):
    x = grid(d).fmod(5)
    return [
        x.sum(), x.mean(0), x.std(), x.var(1), x.max(), *x.max(1), x.argmax(), x.prod(), x.norm(),
        x.any(), x.all(), x.cumsum(0), x.logsumexp(1), x.median(), x.quantile(0.3), *x.topk(2),
        x.sort(1)[0], x.kthvalue(2)[0], x.mode()[0], torch.unique(x), x.count_nonzero(),
        torch.histc(x),
    ]  # fmt: skip


def linear_algebra(d):
    a = torch.eye(3, device=d) + torch.arange(9.0, device=d).view(3, 3) / 10
    s = a @ a.T
    return [
        a.mm(a), torch.linalg.inv(a), torch.linalg.solve(a, a), torch.linalg.svdvals(a),
        torch.linalg.qr(a)[1].abs(), torch.linalg.cholesky(s), torch.linalg.eigvalsh(s), a.det(),
        torch.einsum("ij,jk->ik", a, a), torch.bmm(a[None], a[None]), torch.linalg.norm(a),
        a.trace(), torch.kron(a, a), torch.linalg.lstsq(a, a)[0],
    ]  # fmt: skip


def scattering(d):
    x, i = grid(d), torch.tensor([[0, 1, 2, 0]] * 3, device=d)
    rows = i[0, :2]
    return [
        x.gather(1, i), x.scatter(1, i, 9.0), x.scatter_add(1, i, torch.ones_like(x)),
        x.index_select(0, rows), x.index_add(0, rows, torch.ones(2, 4, device=d)),
        x.index_fill(0, rows[:1], 3.0), torch.take_along_dim(x, i, 1), x.masked_select(x > 3),
        x.nonzero(), torch.searchsorted(x[0], torch.tensor([1.5], device=d)),
        torch.bincount(i.view(-1)), x.masked_scatter(x > 5, torch.zeros(12, device=d)),
        torch.scatter_reduce(x, 1, i, torch.ones_like(x), "amax"),
    ]  # fmt: skip


def choosing(d):
    x = torch.arange(6.0, device=d)
    return [torch.where(x > 3, x, 0.0), torch.where(x > 3, x, torch.zeros_like(x))]


def fourier(d):
    x, long = torch.arange(8.0, device=d), torch.arange(32.0, device=d)
    window = torch.ones(8, device=d)
    return [
        torch.fft.rfft(x).abs(), torch.fft.ifft(torch.fft.fft(x)).real,
        torch.stft(long, 8, return_complex=True, window=window).abs(),
    ]  # fmt: skip


def complex_numbers(d):
    z = torch.tensor([1 + 2j, 3 - 1j, 2j], device=d)
    product = z.conj() @ z.view(3, 1).conj()
    return [z.real, z.imag, z.conj() * z, z.abs(), torch.view_as_real(z), product.resolve_conj(),
            z.conj().clone(), (-z.conj().imag) + 1, z.conj().cpu().to(d)]  # fmt: skip


def bits_and_types(d):
    x = torch.arange(5, device=d)
    return [
        x & 1, x | 2, x ^ 3, ~x, x << 1, x == 2, x != 2, x.float(), x.double(), x.to(torch.uint8),
        x.bool(), x % 2, x // 2, -x, x.abs(), torch.isin(x, torch.tensor([1, 2], device=d)), 2 - x,
        2**x, 1 / (x + 1),
    ]  # fmt: skip


def rearranging(d):
    four, eye = torch.arange(4, device=d), torch.eye(3, device=d)
    return [
        *torch.meshgrid(torch.arange(2, device=d), four, indexing="ij"), torch.roll(four, 1),
        torch.bucketize(torch.tensor([0.5, 1.5], device=d), torch.tensor([0.0, 1.0], device=d)),
        torch.flip(four, [0]), torch.tril(torch.ones(3, 3, device=d)), four.repeat_interleave(2),
        four.repeat(2), torch.cdist(eye, eye), torch.tensor([float("nan")], device=d).nan_to_num(),
        torch.cross(eye, torch.ones(3, 3, device=d), dim=1),
    ]  # fmt: skip


def layers(d):
    i, image = torch.tensor([0, 1, 1], device=d), torch.arange(16.0, device=d).view(1, 1, 4, 4)
    theta, places = torch.eye(2, 3, device=d)[None], torch.zeros(1, 2, 2, 2, device=d)
    return [
        F.embedding_bag(i, torch.ones(3, 2, device=d), torch.tensor([0, 2], device=d)),
        F.grid_sample(image, places, align_corners=False), F.one_hot(i, 3),
        F.affine_grid(theta, (1, 1, 2, 2), align_corners=False),
        F.pixel_shuffle(torch.ones(1, 4, 2, 2, device=d), 2),
    ]  # fmt: skip


def foreach(d):
    two, three = torch.ones(2, device=d), torch.ones(3, device=d)
    return [
        *torch._foreach_add([two, three], 1.0), *torch._foreach_mul([two], [two * 3]),
        *torch._foreach_norm([three]),
    ]  # fmt: skip


def integer_histogram(d):
    # On the CPU only floats are counted; CUDA's kernel counts integers, and so must ours.
    x = torch.tensor([0, 1, 1, 3], device=d)
    return torch.histc(x if d != "cpu" else x.float(), bins=4, min=0, max=3).float()


def sparse(d):
    eye = torch.eye(3, device=d).to_sparse()
    made = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), [1.0, 2.0], (2, 2), device=d)
    doubled = eye.clone().mul_(2).add_(eye)
    copied = torch.zeros_like(eye).copy_(eye)
    return [
        eye.to_dense(), torch.sparse.mm(eye, torch.ones(3, 2, device=d)), made.to_dense(),
        (eye + eye).to_dense(), doubled.to_dense(), eye.t().coalesce().indices(),
        torch.sparse.sum(eye), torch.ones(3, 3, device=d) + eye, copied.to_dense(),
    ]  # fmt: skip


COMPUTED = [
    indexing, setting, views, writing_through_views, in_place, out_argument, resizing, set_storage,
    joining, reductions, linear_algebra, scattering, choosing, fourier, complex_numbers,
    bits_and_types, rearranging, layers, foreach, integer_histogram,
]  # fmt: skip


@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
@pytest.mark.parametrize("compute", COMPUTED, ids=lambda f: f.__name__)
def test_same_as_cpu(compute, device):
    same_as_cpu(device, compute)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_sparse_same_as_cpu():
    same_as_cpu(DEVICE, sparse)


def test_equality():
    x = torch.ones(3, device=DEVICE)
    torch.testing.assert_close(x, x.clone())
    assert torch.equal(x, x.clone())
    assert torch.allclose(x, x + 1e-9)
    with pytest.raises(AssertionError, match="device"):
        torch.testing.assert_close(x, torch.ones(3))


def test_views_share_storage():
    x = torch.zeros(4, device=DEVICE)
    y = x.view(2, 2)
    assert x.data_ptr() == y.data_ptr() != 0
    assert x.untyped_storage().device == torch.device(DEVICE)
    assert x.untyped_storage().nbytes() == 16
    assert x[2:].storage_offset() == 2


def test_changed_in_place_before_backward():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    y = x * 1
    z = (y * y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("optimizer", ["SGD", "SparseAdam", "Adagrad"])
def test_sparse_gradients(optimizer):
    def train(d):
        torch.manual_seed(0)
        embed = torch.nn.Embedding(4, 2, sparse=True).to(d)
        running = getattr(torch.optim, optimizer)(embed.parameters(), lr=0.1)
        embed(torch.tensor([1, 1, 2], device=d)).square().sum().backward()
        assert embed.weight.grad.is_sparse
        running.step()
        return embed.weight.detach()

    same_as_cpu(DEVICE, train)


def test_jagged_nested():
    parts = [torch.ones(2, 3, device=DEVICE), torch.ones(4, 3, device=DEVICE)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    on(DEVICE, nested)
    close((nested * 2).unbind()[0], torch.full((2, 3), 2.0))


UNSUPPORTED = {
    "csr": lambda: torch.eye(3, device=DEVICE).to_sparse_csr(),
    "csr-moved": lambda: torch.eye(3).to_sparse_csr().to(DEVICE),
    "csc-moved": lambda: torch.eye(3).to_sparse_csc().to(DEVICE),
    "bsr-moved": lambda: torch.eye(4).to_sparse_bsr((2, 2)).to(DEVICE),
    "csr-made": lambda: torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), device=DEVICE),
    "bsr": lambda: torch.eye(4, device=DEVICE).to_sparse_bsr((2, 2)),
    "strided-nested": lambda: torch.nested.nested_tensor(
        [torch.ones(2, device=DEVICE), torch.ones(3, device=DEVICE)]
    ).to_padded_tensor(0.0),
    "quantized": lambda: torch.quantize_per_tensor(
        torch.ones(3, device=DEVICE), 0.1, 0, torch.qint8
    ),
    "sparse-on-1": lambda: torch.eye(3, device="sim:1").to_sparse(),
    "mkldnn": lambda: torch.ones(3, device=DEVICE).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_unsupported_is_one_clear_error(kind):
    with pytest.raises(NotImplementedError, match=r"^the simulated accelerator has no "):
        UNSUPPORTED[kind]()


def test_group_by_device():
    from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

    mixed = [torch.ones(2, device=DEVICE), torch.ones(2)]
    assert len(_group_tensors_by_device_and_dtype([mixed])) == 2


def test_refused_text_is_found_with_out():
    refused(lambda: torch.add(torch.ones(3, device=DEVICE), 1, out=torch.ones(3)))
