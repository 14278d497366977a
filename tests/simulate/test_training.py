"""Training: every step gives what it gives on the CPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from comparing import close, on, same_as_cpu
from torch import nn

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def train(make, data, optimizer_of, steps=5):
    """Return a function that trains on a device, and returns losses and parameters."""

    def run(device):
        torch.manual_seed(0)
        model, (x, y) = make(), data()
        model.to(device)
        x, y = x.to(device), y.to(device)
        optimizer = optimizer_of(model.parameters())
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, [p.detach() for p in model.parameters()]]

    return run


def mlp():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))


def rows():
    return torch.randn(8, 4), torch.randint(0, 3, (8,))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adam-single": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False, fused=False),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    same_as_cpu(DEVICE, train(mlp, rows, OPTIMIZERS[name]), 1e-4)


def test_adam_capturable():
    losses, _ = train(mlp, rows, lambda p: torch.optim.Adam(p, lr=0.01, capturable=True))(DEVICE)
    assert losses[-1] < losses[0]


def test_to_convergence_with_control_flow():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], device=DEVICE)
    y = torch.tensor([0, 1, 1, 0], device=DEVICE)
    for _ in range(400):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            break
    assert loss.item() < 0.02
    assert (model(x).argmax(1) == y).all()


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = layer(8, 12, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        return self.head(self.layer(self.embed(x))[0][:, -1])


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0)
        self.embed = nn.Embedding(20, 16)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.body(self.embed(x)).mean(1))


def images():
    return torch.randn(4, 3, 12, 12), torch.randint(0, 3, (4,))


def words():
    return torch.randint(0, 20, (4, 7)), torch.randint(0, 5, (4,))


MODELS = {
    "cnn": (cnn, images),
    "lstm": (lambda: Recurrent(nn.LSTM), words),
    "gru": (lambda: Recurrent(nn.GRU), words),
    "rnn": (lambda: Recurrent(nn.RNN), words),
    "transformer": (Attending, words),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(name):
    same_as_cpu(DEVICE, train(*MODELS[name], lambda p: torch.optim.SGD(p, lr=0.1)), 1e-3)


def convolutions(d):
    pairs = [
        (nn.Conv1d(2, 4, 3, groups=2), torch.randn(2, 2, 8)),
        (nn.Conv3d(1, 2, 2), torch.randn(1, 1, 4, 4, 4)),
        (nn.ConvTranspose2d(2, 3, 3, stride=2), torch.randn(1, 2, 5, 5)),
        (nn.Conv2d(4, 4, 3, dilation=2, groups=4), torch.randn(1, 4, 9, 9)),
    ]
    out = []
    for layer, x in pairs:
        layer.to(d)
        y = layer(x.to(d))
        y.square().mean().backward()
        out += [y, layer.weight.grad]
    return out


def cells(d):
    lstm, gru = nn.LSTMCell(3, 4).to(d), nn.GRUCell(3, 4).to(d)
    x = torch.randn(2, 3).to(d)
    h, c = lstm(x)
    y = gru(x, h)
    (y.sum() + c.sum()).backward()
    return [h, c, y, lstm.weight_ih.grad, gru.weight_hh.grad]


def packed(d):
    layer = nn.LSTM(3, 4, batch_first=True).to(d)
    x = torch.randn(2, 5, 3).to(d)
    lengths = torch.tensor([5, 3])
    out, _ = layer(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    padded.sum().backward()
    return [padded, layer.weight_hh_l0.grad]


def recurrent_without_cudnn(d):
    layer = nn.LSTM(3, 4, batch_first=True).to(d)
    with torch.backends.cudnn.flags(enabled=False):
        y, _ = layer(torch.randn(2, 5, 3).to(d))
    y.square().sum().backward()
    return [y, layer.weight_hh_l0.grad]


def recurrent_states(d):
    layer = nn.GRU(3, 4, dropout=0.0).to(d)
    x, h = torch.randn(5, 2, 3).to(d).requires_grad_(), torch.randn(1, 2, 4).to(d).requires_grad_()
    y, last = layer(x, h)
    (y[-1] * last[0]).sum().backward()
    return [y, last, x.grad, h.grad]


def fast_path(d):
    model, x = Attending().eval().to(d), torch.randint(0, 20, (2, 5)).to(d)
    with torch.no_grad():
        return model(x)


def attention(d):
    q = torch.randn(2, 2, 5, 8).to(d).requires_grad_()
    mask = torch.tril(torch.ones(5, 5, dtype=torch.bool)).to(d)
    a = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    b = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    (a + b).sum().backward()
    x = q[0].detach()
    layer = nn.MultiheadAttention(8, 2, batch_first=True).to(d)
    y, w = layer(x, x, x, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool).to(d))
    return [a, b, q.grad, y, w]


def losses(d):
    x, t = torch.randn(6, 4).to(d).requires_grad_(), torch.randint(0, 4, (6,)).to(d)
    y, w = torch.rand(6, 4).to(d), torch.tensor([1.0, 2, 3, 4]).to(d)
    found = [
        nn.CrossEntropyLoss(weight=w, label_smoothing=0.1)(x, t),
        F.nll_loss(F.log_softmax(x, 1), t, weight=w, ignore_index=2),
        F.mse_loss(x, y),
        F.l1_loss(x, y),
        F.smooth_l1_loss(x, y),
        F.huber_loss(x, y),
        F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        F.binary_cross_entropy(x.sigmoid(), y, weight=y),
        F.kl_div(F.log_softmax(x, 1), y, reduction="batchmean"),
        F.cosine_embedding_loss(x, y, torch.ones(6).to(d)),
        F.triplet_margin_loss(x, y, y + 1),
        F.multi_margin_loss(x, t),
        F.gaussian_nll_loss(x, y, y + 0.1),
        F.cross_entropy(x, y.softmax(1)),
    ]
    sum(found).backward()
    return [*found, x.grad]


def ctc(d):
    x = torch.randn(10, 2, 5).log_softmax(2).to(d).requires_grad_()
    targets = torch.randint(1, 5, (2, 3)).to(d)
    loss = F.ctc_loss(x, targets, torch.tensor([10, 10]), torch.tensor([3, 3]))
    loss.backward()
    return [loss, x.grad]


def norms_activations_pools(d):
    x = torch.randn(2, 4, 6, 6).to(d).requires_grad_()
    y = nn.InstanceNorm2d(4)(nn.GroupNorm(2, 4).to(d)(x))
    y = F.gelu(y) + F.silu(y) + F.elu(y) + F.leaky_relu(y) + F.softplus(y) + F.mish(y)
    y = nn.PReLU().to(d)(y + F.hardswish(y))
    y = F.interpolate(y, scale_factor=2, mode="bilinear")
    y = F.avg_pool2d(y, 2) + F.max_pool2d(y, 2)
    y = F.unfold(F.pad(y, (1, 1, 1, 1), mode="reflect"), 2)
    z = F.normalize(nn.RMSNorm(y.shape[-1]).to(d)(y), dim=1)
    z.square().mean().backward()
    return [z, x.grad]


def batch_norm(d):
    layer, x = nn.BatchNorm1d(4).to(d), torch.randn(8, 4).to(d)
    layer(x)
    layer(x)
    layer.eval()
    return [layer(x), layer.running_mean, layer.running_var, layer.num_batches_tracked]


def clipping(d):
    model, x = mlp().to(d), torch.randn(8, 4).to(d)
    for _ in range(3):
        model(x).square().sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return [norm, *[p.grad for p in model.parameters()], vector]


def double_backward(d):
    x = torch.tensor([1.0, 2.0, 3.0]).to(d).requires_grad_()
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    return [g, h]


COMPUTED = [
    convolutions, cells, packed, recurrent_without_cudnn, recurrent_states, fast_path, attention,
    losses, ctc, norms_activations_pools, batch_norm, clipping, double_backward,
]  # fmt: skip


@pytest.mark.parametrize("compute", COMPUTED, ids=lambda f: f.__name__)
def test_computed(compute):
    same_as_cpu(DEVICE, compute, 1e-4)


def test_dropout_runs():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).to(DEVICE)
    model(torch.randn(2, 3, 8, device=DEVICE), torch.randn(2, 4, 8, device=DEVICE)).sum().backward()
    on(DEVICE, *[p.grad for p in model.parameters()])


def test_recurrent_layer_cannot_be_differentiated_twice():
    layer, x = nn.LSTM(2, 2).to(DEVICE), torch.randn(3, 1, 2, device=DEVICE, requires_grad=True)
    (g,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="_cudnn_rnn_backward"):
        g.sum().backward()


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def test_custom_function():
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    Square.apply(x).sum().backward()
    close(x.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    from torch.utils.checkpoint import checkpoint

    layer = nn.Linear(3, 3).to(DEVICE)
    x = torch.ones(1, 3, device=DEVICE, requires_grad=True)
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    on(DEVICE, layer.weight.grad)


def test_schedule_and_average():
    model = mlp().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(3):
        model(torch.ones(2, 4, device=DEVICE)).sum().backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
    on(DEVICE, *average.module.parameters())
    on(DEVICE, *[s["exp_avg"] for s in optimizer.state_dict()["state"].values()])


def test_optimizer_state_follows_the_parameters():
    host = nn.Linear(2, 2)
    first = torch.optim.Adam(host.parameters())
    host(torch.ones(1, 2)).sum().backward()
    first.step()
    layer = nn.Linear(2, 2).to(DEVICE)
    second = torch.optim.Adam(layer.parameters())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    on(DEVICE, second.state[layer.weight]["exp_avg"])
    layer(torch.ones(1, 2, device=DEVICE)).sum().backward()
    second.step()


def test_two_devices():
    first, second = nn.Linear(3, 4).to("sim:0"), nn.Linear(4, 1).to("sim:1")
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)
    second(first(torch.ones(2, 3, device="sim:0")).to("sim:1")).sum().backward()
    optimizer.step()
    on("sim:0", first.weight.grad)
    on("sim:1", second.weight.grad)


# ------------------------------------------------------------------ exceptions in hooks


def boom(*_):
    raise ValueError("from a hook")


def hook_of_tensor(y):
    y.register_hook(boom)


def hook_of_node(y):
    y.grad_fn.register_hook(boom)


def prehook_of_node(y):
    y.grad_fn.register_prehook(boom)


def hook_of_many(y):
    torch.autograd.graph.register_multi_grad_hook([y], boom)


@pytest.mark.parametrize(
    "register",
    [hook_of_tensor, hook_of_node, prehook_of_node, hook_of_many],
    ids=lambda f: f.__name__,
)
def test_exception_in_a_hook(register):
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    y = x.sin()
    register(y)
    with pytest.raises(ValueError, match="from a hook") as raised:
        y.sum().backward()
    assert raised.traceback[-1].name == "boom"
    (x * 2).sum().backward()
    close(x.grad, torch.full((2,), 2.0))


def test_exception_in_other_hooks():
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    x.register_post_accumulate_grad_hook(boom)
    with pytest.raises(ValueError, match="from a hook"):
        x.sum().backward()
    layer = nn.Linear(2, 2).to(DEVICE)
    layer.register_full_backward_hook(boom)
    with pytest.raises(ValueError, match="from a hook"):
        layer(torch.ones(1, 2, device=DEVICE, requires_grad=True)).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, boom):
        y = (torch.ones(2, device=DEVICE, requires_grad=True) ** 2).sum()
    with pytest.raises(ValueError, match="from a hook"):
        y.backward()


def test_exception_in_a_backward_inside_a_backward():
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            x = torch.ones(2, device=DEVICE, requires_grad=True)
            x.register_hook(boom)
            with torch.enable_grad(), pytest.raises(ValueError, match="from a hook"):
                (x * 2).sum().backward()
            return grad

    x = torch.ones(2, device=DEVICE, requires_grad=True)
    Nested.apply(x).sum().backward()
    close(x.grad, torch.ones(2))
