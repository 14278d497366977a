"""`simulate("cuda")`: code that says "cuda" itself, unmodified, on a machine without CUDA."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import early_names
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from devicekit.testing import Simulation, simulate


@pytest.fixture(autouse=True)
def simulation() -> Iterator[Simulation]:
    with simulate("cuda", count=2) as running:
        yield running


ONE = torch.device("cuda:1")

# ------------------------------------------------------------------ the device is there


def test_queries() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name(1) == "Simulated CUDA"
    assert torch.cuda.get_device_capability() == (8, 0)
    assert torch.cuda.get_device_properties("cuda:1").total_memory == 16 << 30
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.is_bf16_supported()
    assert torch.cuda.can_device_access_peer(0, 1)
    assert torch.backends.cuda.is_built()
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert torch.accelerator.device_count() == 2
    assert torch.get_device_module("cuda") is torch.cuda
    assert torch.get_device_module() is torch.cuda


def test_simulation_names_its_devices(simulation: Simulation) -> None:
    assert simulation.name == "cuda"
    assert simulation.devices == (torch.device("cuda:0"), ONE)


def test_cuda_is_initialized_by_first_use() -> None:
    assert not torch.cuda.is_initialized()
    torch.zeros(1, device="cuda")
    assert torch.cuda.is_initialized()


def test_visible_devices_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert torch.cuda.device_count() == 2


@pytest.mark.parametrize(
    "ask",
    [
        lambda: torch.cuda.get_device_name(7),
        lambda: torch.cuda.get_device_properties(7),
    ],
)
def test_torchs_own_checks_still_run(ask: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="Invalid device id"):
        ask()


INVALID = {
    "to": lambda: torch.ones(1).to("cuda:7"),
    "to device": lambda: torch.ones(1).to(torch.device("cuda", 7)),
    "to index": lambda: torch.ones(1).to(7),
    "cuda": lambda: torch.ones(1).cuda(7),
    "factory": lambda: torch.zeros(1, device="cuda:7"),
    "module": lambda: nn.Linear(1, 1).cuda(7),
    "module to": lambda: nn.Linear(1, 1).to("cuda:7"),
    "set_device": lambda: torch.cuda.set_device(7),
    "context": lambda: torch.cuda.device(7).__enter__(),
    "generator": lambda: torch.Generator("cuda:7"),
}


@pytest.mark.parametrize("call", INVALID.values(), ids=INVALID)
def test_invalid_ordinal(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        call()


# ------------------------------------------------------------------ every way to get there

PLACES = {
    "factory, str": lambda: torch.zeros(2, device="cuda:1"),
    "factory, device": lambda: torch.zeros(2, device=ONE),
    "tensor": lambda: torch.tensor([1, 2], device="cuda:1"),
    "as_tensor": lambda: torch.as_tensor([1, 2], device="cuda:1"),
    "asarray": lambda: torch.asarray(np.ones(2), device="cuda:1"),
    "arange": lambda: torch.arange(3, device="cuda:1"),
    "full": lambda: torch.full((2,), 1.0, device="cuda:1"),
    "randn": lambda: torch.randn(2, device="cuda:1"),
    "randint": lambda: torch.randint(0, 3, (2,), device="cuda:1"),
    "randperm": lambda: torch.randperm(3, device="cuda:1"),
    "normal": lambda: torch.normal(0.0, 1.0, (2,), device="cuda:1"),
    "eye": lambda: torch.eye(2, device="cuda:1"),
    "linspace": lambda: torch.linspace(0, 1, 3, device="cuda:1"),
    "hann_window": lambda: torch.hann_window(4, device="cuda:1"),
    "fftfreq": lambda: torch.fft.fftfreq(4, device="cuda:1"),
    "tril_indices": lambda: torch.tril_indices(2, 2, device="cuda:1"),
    "empty_strided": lambda: torch.empty_strided((2,), (1,), device="cuda:1"),
    "zeros_like": lambda: torch.zeros_like(torch.ones(2), device="cuda:1"),
    "rand_like": lambda: torch.rand_like(torch.ones(2), device="cuda:1"),
    "new_zeros": lambda: torch.ones(2).new_zeros(2, device="cuda:1"),
    "new_tensor": lambda: torch.ones(2).new_tensor([1.0], device="cuda:1"),
    "new_tensor, own": lambda: torch.ones(2, device="cuda:1").new_tensor([1.0]),
    "new, own": lambda: torch.ones(2, device="cuda:1").new(2),
    "to": lambda: torch.ones(2).to("cuda:1"),
    "to, device": lambda: torch.ones(2).to(ONE),
    "to, index": lambda: torch.ones(2).to(1),
    "to, keyword": lambda: torch.ones(2).to(device="cuda:1", dtype=torch.float16),
    "to, other": lambda: torch.ones(2).to(torch.zeros(1, device="cuda:1")),
    "cuda": lambda: torch.ones(2).cuda(1),
    "cuda, str": lambda: torch.ones(2).cuda("cuda:1"),
    "cuda, keyword": lambda: torch.ones(2).cuda(device=ONE, non_blocking=True),
    "type": lambda: torch.ones(2, device="cuda:1").type(torch.float16),
    "module": lambda: nn.Linear(1, 1).to("cuda:1").weight,
    "module, cuda": lambda: nn.Linear(1, 1).cuda(1).weight,
    "module, device=": lambda: nn.Linear(1, 1, device="cuda:1").weight,
    "module, meta": lambda: nn.Linear(1, 1, device="meta").to_empty(device="cuda:1").weight,
    "signal": lambda: torch.signal.windows.cosine(4, device="cuda:1"),
    "deepcopy": lambda: copy.deepcopy(torch.ones(2, device="cuda:1")),
    "pickle": lambda: pickle.loads(pickle.dumps(torch.ones(2, device="cuda:1"))),
    "type_as": lambda: torch.ones(2).type_as(torch.ones(1, device="cuda:1")),
    "data": lambda: torch.ones(2, device="cuda:1").data,
    "packed": lambda: nn.utils.rnn.pack_sequence([torch.ones(2)]).to("cuda:1").data,
}


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_place(make: Callable[[], torch.Tensor]) -> None:
    x = make()
    assert x.device == ONE
    assert x.is_cuda
    assert not x.is_cpu
    assert x.get_device() == 1
    assert x.untyped_storage().device == ONE
    assert "cuda:1" in repr(x)
    assert x.cpu().device.type == "cpu"


def test_context_and_default_device() -> None:
    with torch.device("cuda:1"):
        assert torch.zeros(1).device == ONE
        assert nn.Linear(1, 1).weight.device == ONE
        assert torch.get_default_device() == ONE
    torch.set_default_device("cuda")
    try:
        with torch.cuda.device(1):
            assert torch.zeros(1).device == ONE
        assert torch.zeros(1).device == torch.device("cuda:0")
    finally:
        torch.set_default_device(None)
    assert torch.zeros(1).device.type == "cpu"


def test_current_device() -> None:
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        assert torch.zeros(1, device="cuda").device == ONE
        assert torch.zeros(1).cuda().device == ONE
        assert nn.Linear(1, 1).cuda().weight.device == ONE
        with torch.cuda.device_of(torch.zeros(1, device="cuda:0")):
            assert torch.cuda.current_device() == 0
        with torch.cuda.device(None):
            assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1
    torch.cuda.set_device(0)


def test_legacy_types() -> None:
    x = torch.cuda.FloatTensor(2, 3)
    assert x.shape == (2, 3)
    assert x.type() == "torch.cuda.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.LongTensor)
    assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
    assert torch.ones(1).type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"
    assert torch.ones(1).type(torch.cuda.IntTensor).is_cuda
    assert x.cpu().type() == "torch.FloatTensor"
    assert x.cpu().type(torch.float64).dtype is torch.float64


# ------------------------------------------------------------------ names imported before


def test_names_that_a_module_imported_before() -> None:
    assert early_names.is_available()
    assert early_names.device_count() == 2
    assert early_names.get_device_name() == "Simulated CUDA"
    assert early_names.by_name().device == ONE
    assert early_names.tensor([1], device="cuda").is_cuda
    assert early_names.GradScaler is torch.cuda.amp.GradScaler


@pytest.mark.parametrize(
    "call",
    [
        lambda: early_names.zeros_on(device="cuda"),
        lambda: early_names.Holder.make(2, device="cuda"),
        early_names.default_argument,
    ],
    ids=["partial", "class", "default argument"],
)
def test_function_kept_elsewhere_is_a_clear_error(call: Callable[[], object]) -> None:
    with pytest.raises(
        NotImplementedError, match='the device "cuda" reached torch\'s C\\+\\+ code'
    ):
        call()


def test_dispatcher_called_directly_is_an_error_and_no_crash() -> None:
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ops.aten.empty([2], device=torch.device("cuda"))
    assert torch.zeros(1, device="cuda").is_cuda


# ------------------------------------------------------------------ errors


def test_mismatch_in_cudas_words() -> None:
    layer = nn.Linear(3, 2).cuda()
    with pytest.raises(RuntimeError) as caught:
        layer(torch.ones(1, 3))
    assert str(caught.value).splitlines()[0] == (
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from "
        "other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)"
    )


MIXED = {
    "two devices": lambda: torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1"),
    "lstm": lambda: nn.LSTM(2, 2).cuda()(torch.ones(1, 1, 2)),
    "lstm, state": lambda: nn.LSTM(2, 2).cuda()(
        torch.ones(1, 1, 2).cuda(), (torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    ),
    "gru": lambda: nn.GRU(2, 2)(torch.ones(1, 1, 2).cuda()),
    "attention": lambda: F.scaled_dot_product_attention(
        torch.ones(1, 1, 2, 2).cuda(), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2).cuda()
    ),
    "gradient": lambda: setattr(torch.ones(2, device="cuda"), "grad", torch.ones(2)),
    "backward": lambda: (torch.ones(2, device="cuda", requires_grad=True) * 2).backward(
        torch.ones(2)
    ),
}


@pytest.mark.parametrize("call", MIXED.values(), ids=MIXED)
def test_no_error_shows_the_other_name(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert "cuda" in str(caught.value)
    assert "sim" not in str(caught.value)


def test_numpy_is_refused() -> None:
    x = torch.ones(2, device="cuda:1")
    expected = (
        "can't convert cuda:1 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
        "host memory first."
    )
    for convert in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError) as caught:
            convert()
        assert str(caught.value) == expected
    assert x.cpu().numpy().sum() == 2


def test_other_libraries_do_not_get_the_pointer() -> None:
    x = torch.ones(2, device="cuda")
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.__dlpack_device__()[0] != 2  # kDLCUDA
    assert x.cpu().__dlpack_device__()[0] == 1


def test_what_needs_a_gpu_says_so() -> None:
    for call in (
        lambda: torch.cuda.CUDAGraph(),
        lambda: torch.cuda.current_blas_handle(),
        lambda: torch.cuda.caching_allocator_alloc(1),
        lambda: torch.cuda.Event(interprocess=True).ipc_handle(),
    ):
        with pytest.raises(NotImplementedError, match="simulated"):
            call()


def test_real_cuda_is_refused_unless_asked_for(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.stop()
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 1, raising=False)
    with pytest.raises(RuntimeError, match="allow_real=True"):
        simulate("cuda")
    with simulate("cuda", allow_real=True):
        assert torch.cuda.device_count() == 2
    assert torch._C._cuda_getDeviceCount() == 1


# ------------------------------------------------------------------ random numbers, memory, streams


def test_seeds() -> None:
    torch.manual_seed(5)
    a = torch.randn(3, device="cuda")
    torch.cuda.manual_seed(5)
    b = torch.randn(3, device="cuda")
    torch.cuda.manual_seed_all(5)
    c, d = torch.randn(3, device="cuda:0"), torch.randn(3, device="cuda:1")
    assert a.tolist() == b.tolist() == c.tolist() == d.tolist()
    state = torch.cuda.get_rng_state()
    e = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.rand(3, device="cuda").tolist() == e.tolist()
    assert torch.cuda.initial_seed() == 5
    assert len(torch.cuda.get_rng_state_all()) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "CUDA reports that you have 2 available devices"
        with torch.random.fork_rng():
            torch.rand(3, device="cuda")


def test_generator() -> None:
    generator = torch.Generator(device="cuda:1").manual_seed(3)
    assert generator.device == ONE
    a = torch.randn(3, device="cuda:1", generator=generator)
    b = torch.randn(3, device="cuda:1", generator=generator.manual_seed(3))
    assert a.tolist() == b.tolist()
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(3, device="cuda", generator=torch.Generator())


def test_memory() -> None:
    before, other = torch.cuda.memory_allocated(), torch.cuda.memory_allocated(1)
    x = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4000
    assert torch.cuda.memory_allocated(1) == other
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == before + 4000
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4000
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.memory_reserved() == before
    assert torch.cuda.mem_get_info()[1] == 16 << 30
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()


def test_out_of_memory(simulation: Simulation) -> None:
    simulation.stop()
    too_much = pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory")
    with simulate("cuda", memory=1000), too_much:
        torch.zeros(1000, device="cuda")


def test_streams_and_events() -> None:
    side = torch.cuda.Stream()
    assert isinstance(side, torch.Stream)
    assert isinstance(side, torch.cuda.Stream)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        x = torch.ones(2, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    x.record_stream(torch.cuda.current_stream())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    start, end = torch.cuda.Event(True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record(side)
    end.synchronize()
    torch.cuda.synchronize("cuda:1")
    assert start.elapsed_time(end) >= 0
    assert end.query()
    other = torch.cuda.Stream(device="cuda:1", priority=-1)
    assert other.device == ONE
    with torch.cuda.stream(other):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    assert repr(other).startswith("<torch.cuda.Stream device=cuda:1 cuda_stream=0x")
    with torch.cuda.nvtx.range("step"):
        torch.cuda.nvtx.mark("here")
    assert not torch.cuda.is_current_stream_capturing()


# ------------------------------------------------------------------ programs


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.randn(8, generator=torch.Generator().manual_seed(i)), i % 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 3))


def trained(device: str, *, amp: torch.dtype | None, workers: int = 0) -> list[float]:
    """Train as a script of a user does, and return the losses."""
    net = model().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=amp is torch.float16 and device == "cuda")
    pin = device == "cuda"
    losses = []
    for _ in range(2):
        for x, y in DataLoader(Numbers(), batch_size=16, pin_memory=pin, num_workers=workers):
            assert x.is_pinned() == pin
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=amp, enabled=amp is not None):
                out = net(x)
                loss = F.cross_entropy(out, y)
            assert out.dtype == (amp or torch.float32)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("amp", [None, torch.bfloat16], ids=str)
def test_training_equals_the_cpu(amp: torch.dtype | None) -> None:
    tolerance = 1e-5 if amp is None else 0.05
    assert trained("cuda", amp=amp) == pytest.approx(trained("cpu", amp=amp), rel=tolerance)


@pytest.mark.parametrize("late", [False, True], ids=["", "async"])
def test_amp_training_with_grad_scaler_and_workers(simulation: Simulation, late: bool) -> None:
    simulation.stop()
    with simulate("cuda", async_copies=late):
        losses = trained("cuda", amp=torch.float16, workers=2)
        assert losses == pytest.approx(trained("cuda", amp=None), rel=0.05)


def test_deprecated_amp_names() -> None:
    layer = nn.Linear(4, 4).cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        scaler = torch.cuda.amp.GradScaler()
        with torch.cuda.amp.autocast():
            assert torch.is_autocast_enabled()
            assert layer(torch.ones(1, 4).cuda()).dtype is torch.float16
    assert not torch.is_autocast_enabled("cuda")
    assert scaler.is_enabled()


def test_autocast_of_a_custom_function() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("cuda")
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, g):
            return g * 2

    x = torch.ones(2, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        y = Double.apply(x)
    assert y.dtype is torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_checkpoint_of_a_training(tmp_path: Path) -> None:
    net = model().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    path = tmp_path / "checkpoint.pt"
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, path)

    def weight(map_location: object) -> torch.Tensor:
        return torch.load(path, map_location=map_location)["net"]["0.weight"]

    assert weight(None).device == torch.device("cuda:0")
    assert weight("cuda:1").device == ONE
    assert weight(ONE).device == ONE
    assert weight({"cuda:0": "cuda:1"}).device == ONE
    assert weight(lambda storage, tag: storage.cuda(1)).device == ONE
    assert weight("cpu").device.type == "cpu"
    assert weight(lambda storage, tag: storage).device.type == "cpu"
    restored = model().to(ONE)
    restored.load_state_dict(torch.load(path)["net"])
    assert restored[0].weight.device == ONE
    assert torch.equal(restored[0].weight.cpu(), net[0].weight.cpu())
    again = torch.optim.Adam(restored.parameters())
    again.load_state_dict(torch.load(path)["optimizer"])
    assert again.state[restored[0].weight]["exp_avg"].device == ONE


def test_checkpoint_elsewhere(simulation: Simulation) -> None:
    file = io.BytesIO()
    torch.save(torch.ones(1, device="cuda:1"), file)
    simulation.stop()
    file.seek(0)
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        torch.load(file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [1]
    with simulate("cuda", count=1):
        file.seek(0)
        with pytest.raises(
            RuntimeError,
            match=r"object on CUDA device 1 but torch.cuda.device_count\(\) is 1",
        ):
            torch.load(file)


def test_pipeline_over_two_devices() -> None:
    first, second = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 2).to("cuda:1")
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    out = second(F.relu(first(torch.randn(4, 8, device="cuda:0"))).to("cuda:1"))
    out.square().mean().backward()
    optimizer.step()
    assert first.weight.grad.device == torch.device("cuda:0")
    assert second.weight.grad.device == ONE
    with pytest.raises(RuntimeError, match="same device"):
        second(first(torch.randn(4, 8, device="cuda:0")))


def test_data_parallel() -> None:
    net = model()
    x = torch.randn(6, 8)
    net.eval()
    expected = net(x)
    parallel = nn.DataParallel(copy.deepcopy(net).cuda())
    out = parallel(x.cuda())
    torch.testing.assert_close(out.cpu(), expected)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(parallel.module[0].weight.grad.cpu(), net[0].weight.grad)


def test_comm() -> None:
    comm = nn.parallel.comm
    x = torch.arange(4.0, device="cuda:0")
    parts = comm.scatter(x, [0, 1])
    assert [part.device.index for part in parts] == [0, 1]
    assert comm.gather(parts, destination=1).tolist() == [0, 1, 2, 3]
    assert comm.gather(parts, destination="cpu").device.type == "cpu"
    assert [y.tolist() for y in comm.broadcast(x, [0, 1])] == [x.tolist()] * 2
    out = [torch.empty(4, device="cuda:0"), torch.empty(4, device="cuda:1")]
    assert comm.broadcast(x, out=out)[1].tolist() == [0, 1, 2, 3]
    halves = [torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")]
    assert comm.scatter(x, out=halves)[1].tolist() == [2, 3]
    assert comm.gather(halves, out=torch.empty(4, device="cuda:1")).tolist() == [0, 1, 2, 3]
    assert comm.reduce_add(comm.broadcast(x, [0, 1]), 1).tolist() == [0, 2, 4, 6]


def test_compile_passes_through() -> None:
    layer = nn.Linear(2, 2).cuda()
    assert torch.compile(layer) is layer

    @torch.compile(fullgraph=True)
    def double(x):
        return x * 2

    assert double(torch.ones(1, device="cuda")).tolist() == [2]
    layer.compile()
    assert layer(torch.ones(1, 2, device="cuda")).is_cuda


def test_what_was_compiled_before_runs_eagerly(simulation: Simulation) -> None:
    simulation.stop()

    @torch.compile(backend="eager")
    def double(x):
        return x * 2

    assert double(torch.ones(1)).tolist() == [2]
    with simulate("cuda"):
        assert double(torch.ones(1, device="cuda")).tolist() == [2]
        assert double(torch.ones(1)).tolist() == [2]
    with simulate():
        assert double(torch.ones(1, device="sim")).tolist() == [2]
    assert double(torch.ones(1)).tolist() == [2]


def test_typical_device_line() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = next(iter(DataLoader(TensorDataset(torch.ones(4, 8), torch.ones(4)), batch_size=4)))
    assert (x.to(device).sum() + y.to(device).sum()).item() == 36


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_forward_mode_and_functional_transforms() -> None:
    x = torch.ones(3, device="cuda")
    assert torch.func.grad(lambda x: (x**2).sum())(x).tolist() == [2, 2, 2]
    assert torch.vmap(lambda x: torch.zeros((), device="cuda") + x)(x).is_cuda
    _, tangent = torch.func.jvp(lambda x: x * x, (x,), (x,))
    assert tangent.tolist() == [2, 2, 2]


def test_checkpointing() -> None:
    layer = nn.Linear(3, 3).cuda()
    x = torch.ones(1, 3, device="cuda", requires_grad=True)
    for reentrant in (False, True):
        out = torch.utils.checkpoint.checkpoint(
            lambda x: F.dropout(layer(x)), x, use_reentrant=reentrant
        )
        out.sum().backward()
    assert layer.weight.grad.is_cuda


def test_recurrent_layers_do_not_warn() -> None:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        out, _ = kind(2, 3, num_layers=2, bidirectional=True).cuda()(torch.ones(4, 1, 2).cuda())
        assert out.is_cuda
