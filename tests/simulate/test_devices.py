"""Current device, random numbers, autocast, streams, threads, and torch's own transforms."""

import threading
from concurrent.futures import ThreadPoolExecutor

import early_names
import pytest
import torch
import torch.nn.functional as F
from comparing import close, on, refused
from torch import nn

from devicekit.testing import simulate

pytestmark = pytest.mark.usefixtures("simulated_accelerator")

DEVICE = "sim:0"


def there(*size, **options):
    return torch.ones(*size, device=DEVICE, **options)


@pytest.fixture
def module():
    return torch.get_device_module("sim")


# ------------------------------------------------------------------ devices


def test_queries(module):
    assert module is torch.sim
    assert module.is_available()
    assert (module.device_count(), module.current_device()) == (2, 0)
    assert module.get_device_name(1) == "Simulated accelerator"
    assert module.get_device_capability() == (8, 0)
    assert module.get_device_properties("sim:0").total_memory > 0
    module.synchronize()
    refused(lambda: module.get_device_name(2), match="invalid device ordinal")


def test_current_device(module):
    with module.device(1):
        assert module.current_device() == torch.accelerator.current_device_index() == 1
        on("sim:1", torch.zeros(1, device="sim"))
    assert module.current_device() == 0
    module.set_device(1)
    on("sim:1", torch.zeros(1).to("sim"))
    module.set_device("sim:0")
    with module.device_of(torch.zeros(1, device="sim:1")):
        assert module.current_device() == 1
    with module.device_of(torch.zeros(1)), module.device(None):
        assert module.current_device() == 0
    refused(lambda: module.set_device(2), match="invalid device ordinal")


def test_current_device_is_each_threads_own(module):
    module.set_device(1)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(module.current_device).result() == 0
    module.set_device(0)


def test_accelerator():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert torch.accelerator.device_count() == 2
    torch.accelerator.set_device_index(1)
    assert torch.accelerator.current_device_index() == 1
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()


# ------------------------------------------------------------------ random numbers


def test_seed_repeats():
    torch.manual_seed(5)
    a = torch.randn(4, device=DEVICE)
    torch.manual_seed(5)
    assert torch.equal(a, torch.randn(4, device=DEVICE))
    torch.manual_seed(3)
    p = F.dropout(there(100), 0.5)
    torch.manual_seed(3)
    assert torch.equal(p, F.dropout(there(100), 0.5))


def test_the_cpu_has_numbers_of_its_own():
    torch.manual_seed(5)
    a = torch.rand(3)
    torch.manual_seed(5)
    torch.randn(100, device=DEVICE)
    F.dropout(there(10), 0.5)
    nn.LSTM(2, 2, num_layers=2, dropout=0.5).to(DEVICE)(there(3, 1, 2))
    torch.manual_seed(5)
    torch.randn(100, device=DEVICE)
    assert torch.equal(a, torch.rand(3))


def test_generator():
    g = torch.Generator(device=DEVICE).manual_seed(3)
    a = torch.randn(4, device=DEVICE, generator=g)
    g.manual_seed(3)
    assert torch.equal(a, torch.randn(4, device=DEVICE, generator=g))
    assert g.device == torch.device(DEVICE)
    assert isinstance(g, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    state = g.get_state()
    b = torch.rand(2, device=DEVICE, generator=g)
    g.set_state(state)
    assert torch.equal(b, torch.rand(2, device=DEVICE, generator=g))


def test_state_of_the_generator(module):
    state = module.get_rng_state()
    a = torch.rand(3, device=DEVICE)
    module.set_rng_state(state)
    assert torch.equal(a, torch.rand(3, device=DEVICE))
    module.set_rng_state_all(module.get_rng_state_all())
    with torch.random.fork_rng(devices=[0], device_type="sim"):
        b = torch.rand(3, device=DEVICE)
    assert torch.equal(b, torch.rand(3, device=DEVICE))


def test_distributions():
    normal = torch.distributions.Normal(there(3), there(3))
    sample = normal.rsample()
    on(DEVICE, sample, normal.log_prob(sample))
    on(DEVICE, torch.distributions.Categorical(logits=there(3)).sample())
    on(DEVICE, torch.distributions.Beta(there(2), there(2)).sample())
    on(DEVICE, torch.distributions.Dirichlet(there(3)).rsample())
    on(DEVICE, torch.distributions.Poisson(there(3)).sample())


# ------------------------------------------------------------------ autocast


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    layer = nn.Linear(3, 4).to(DEVICE)
    with torch.autocast("sim", dtype=dtype):
        y = layer(there(2, 3))
        s = F.softmax(y, -1)
        loss = F.cross_entropy(y, torch.tensor([0, 1], device=DEVICE))
        joined = torch.cat([y, there(2, 4)])
    assert (y.dtype, s.dtype, loss.dtype) == (dtype, torch.float32, torch.float32)
    assert joined.dtype == torch.float32
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32


def test_autocast_of_a_recurrent_layer():
    layer = nn.LSTM(3, 4).to(DEVICE)
    with torch.autocast("sim", dtype=torch.bfloat16):
        y, _ = layer(there(2, 1, 3))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight_hh_l0.grad.dtype == torch.float32


def test_grad_scaler():
    layer = nn.Linear(3, 1).to(DEVICE)
    optimizer, scaler = torch.optim.SGD(layer.parameters(), lr=0.1), torch.amp.GradScaler("sim")
    before = layer.weight.detach().cpu().clone()
    scaler.scale(layer(there(2, 3)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(before, layer.weight.detach().cpu())
    assert scaler.get_scale() == 65536.0


# ------------------------------------------------------------------ streams, threads


def test_streams_and_events(module):
    stream = module.Stream()
    with module.stream(stream):
        x = there(3) * 2
        assert module.current_stream() == stream
    module.current_stream().wait_stream(stream)
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    x.record_stream(stream)
    assert stream.query()


def test_thread():
    results = []

    def work():
        x = torch.ones(3, device=DEVICE, requires_grad=True)
        (x * 2).sum().backward()
        results.append((x.grad.device, (x + x).sum().item()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [(torch.device(DEVICE), 6.0)]


def test_threads_share_tensors():
    x = there(100)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: (x * i).sum().item(), range(100)))
    assert found == [100.0 * i for i in range(100)]


# ------------------------------------------------------------------ transforms


def test_func():
    g = torch.func.grad(lambda x: (x**2).sum())(there(3))
    on(DEVICE, g)
    close(g, torch.full((3,), 2.0))
    close(torch.vmap(lambda x: x.sum())(there(2, 3)), torch.full((2,), 3.0))
    close(torch.func.jacrev(lambda x: x**2)(there(2)), torch.eye(2) * 2)
    layer = nn.Linear(2, 2).to(DEVICE)
    parameters = dict(layer.named_parameters())
    on(DEVICE, torch.func.functional_call(layer, parameters, (there(1, 2),)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # since 2.14
def test_forward_ad():
    import torch.autograd.forward_ad as forward_ad

    with forward_ad.dual_level():
        x = forward_ad.make_dual(there(3), there(3))
        close(forward_ad.unpack_dual(x * x).tangent, torch.full((3,), 2.0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    f = torch.compile(lambda x: (x * 2 + 1).sum(), backend=backend)
    x = there(3, requires_grad=True)
    f(x).backward()
    close(x.grad, torch.full((3,), 2.0))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # since 2.14
def test_traces():
    layer = nn.Linear(3, 2).to(DEVICE)
    on(DEVICE, torch.jit.trace(layer, there(1, 3))(there(1, 3)))
    on(DEVICE, torch.fx.symbolic_trace(layer)(there(1, 3)))


def test_gradcheck():
    x = torch.randn(3, dtype=torch.double, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: (x * x).sum(), x)


class Marked(torch.Tensor):
    """A subclass as users make them."""


def test_subclass():
    y = there(3).as_subclass(Marked) + 1
    assert type(y) is Marked
    on(DEVICE, y)


told = []


class Told(torch.Tensor):
    """A subclass that does something of its own for some functions, as torchvision's do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        told.append(function)
        return super().__torch_function__(function, types, args, kwargs)


ARGUMENTS = {"new_tensor": ([1.0],), "new_zeros": (2,)}


@pytest.mark.parametrize("name", early_names.METHODS)
@pytest.mark.parametrize("under", ["sim", "cuda"])
def test_a_subclass_is_told_of_torchs_own_methods(name, under, simulated_accelerator):
    """Whether it compares with what Tensor has now, or looks into a table that was made before."""
    with simulate(under):
        x = torch.ones(2).as_subclass(Told)
        told.clear()
        arguments = (f"{under}:1",) if name == "to" else ARGUMENTS.get(name, ())
        result = getattr(x, name)(*arguments)
        if name == "to":
            on(f"{under}:1", result)
        assert any(function is getattr(torch.Tensor, name) for function in told)

    assert early_names.METHODS[name] in told
    assert early_names.METHODS[name] in dict.fromkeys(told)


def test_save_on_cpu():
    with torch.autograd.graph.save_on_cpu():
        x = there(3, requires_grad=True)
        y = (x * x).sum()
    y.backward()
    on(DEVICE, x.grad)


def test_inference_mode():
    with torch.inference_mode():
        x = there(3) * 2
        x.add_(1)
    close(x, torch.full((3,), 3.0))
    assert x.is_inference()


def test_cycles_are_collected_while_kernels_run():
    class Holder:
        pass

    for _ in range(300):
        a = Holder()
        a.me, a.x = a, there(10) * 2


# ------------------------------------------------------------------ distributed


def test_gloo_is_refused(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for call in (
            lambda: dist.all_reduce(there(2)),
            lambda: dist.broadcast(there(2), 0),
            lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2).to(DEVICE)),
        ):
            refused(call, match="No backend type associated with device type sim")
        x = torch.ones(2)
        dist.all_reduce(x)
        close(x, torch.ones(2))
    finally:
        dist.destroy_process_group()
