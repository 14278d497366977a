"""What torch does on the CPU, as text: run alone, and after a simulation that has ended.

Called with "after" it first uses and leaves simulations of both names. The outputs must be equal.
"""

import copy
import io
import json
import pickle
import sys
import warnings
from collections.abc import Callable

import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")


def use_simulations() -> None:
    from devicekit.testing import simulate

    for name in ("sim", "cuda", "sim", "cuda"):
        with simulate(name, async_copies=name == "cuda"), simulate(name, count=3):
            net = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4)).to(name)
            out, _ = net(torch.randn(2, 1, 4, device=name))
            out.sum().backward()
            torch.optim.Adam(net.parameters()).step()
            for _ in DataLoader(TensorDataset(torch.ones(4)), pin_memory=True):
                pass
            torch.save(out, io.BytesIO())


def steps(make: Callable[[], nn.Module], *shape: int) -> list[float]:
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        out = net(torch.randn(*shape))
        loss = (out[0] if isinstance(out, tuple) else out).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def saved(x: object) -> object:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def cast() -> torch.dtype:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return nn.Linear(2, 2)(torch.ones(1, 2)).dtype


def hooked() -> list[str]:
    seen: list[str] = []
    layer = nn.Linear(2, 2)
    layer.weight.register_hook(lambda g: seen.append("tensor"))
    layer.register_full_backward_hook(lambda *_: seen.append("module"))
    layer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    return seen


def moved() -> bool:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.to(torch.float64)
    return layer.weight is weight


def scripted() -> float:
    return torch.jit.script(lambda_like)(torch.ones(2)).sum().item()


def lambda_like(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros([2]) + torch.ones_like(x) + x


def default_device() -> str:
    with torch.device("meta"):
        return str(torch.zeros(1).device) + str(torch.tensor([1]).device)


CHECKS: dict[str, Callable[[], object]] = {
    "zeros": lambda: torch.zeros(2),
    "rand": lambda: (torch.manual_seed(1), torch.rand(3), torch.randn(2), torch.randperm(5))[1:],
    "device": lambda: (torch.ones(1).device, torch.ones(1).is_cuda, torch.ones(1).type()),
    "type": lambda: torch.ones(1).type("torch.DoubleTensor").type(),
    "numpy": lambda: torch.ones(2).numpy().tolist(),
    "dlpack": lambda: (torch.ones(1).__dlpack_device__(), torch.from_dlpack(torch.ones(1))),
    "cuda interface": lambda: torch.ones(1).__cuda_array_interface__,
    "pinned": lambda: torch.ones(2).is_pinned(),
    "pin sparse": lambda: torch.eye(2).to_sparse().pin_memory(),
    "storage": lambda: torch.ones(2).untyped_storage().device,
    "storage new": lambda: torch.UntypedStorage(4).nbytes(),
    "storage copy": lambda: torch.ones(1).untyped_storage().clone().tolist(),
    "new": lambda: (torch.ones(1).new(2).shape, torch.ones(1).new_tensor([1])),
    "generator": lambda: (type(torch.Generator()), torch.Generator().manual_seed(1).device),
    "generator of cuda": lambda: torch.Generator("cuda"),
    "stream": lambda: torch.Stream.__name__ + torch.Event.__name__,
    "cuda zeros": lambda: torch.zeros(1, device="cuda"),
    "cuda to": lambda: torch.ones(1).to("cuda"),
    "cuda method": lambda: torch.ones(1).cuda(),
    "cuda module": lambda: nn.Linear(1, 1).cuda(),
    "cuda queries": lambda: (
        torch.cuda.is_available(),
        torch.cuda.device_count(),
        torch.cuda.is_initialized(),
        torch.cuda.memory_allocated(),
        torch.cuda._is_in_bad_fork(),
        torch.backends.cuda.is_built(),
        torch.cuda.is_bf16_supported(),
    ),
    "cuda name": lambda: torch.cuda.get_device_name(),
    "cuda stream": lambda: torch.cuda.Stream(),
    "cuda event": lambda: torch.cuda.Event.__module__,
    "cuda tensor type": lambda: torch.cuda.FloatTensor(1),
    "cuda autocast": lambda: torch.is_autocast_enabled(),
    "accelerator": lambda: torch.accelerator.is_available(),
    "current accelerator": lambda: torch.accelerator.current_accelerator(),
    "get_device_module": lambda: torch.get_device_module("cpu").__name__,
    "default device": lambda: torch.get_default_device(),
    "device context": default_device,
    "mlp": lambda: steps(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), 3, 4),
    "conv": lambda: steps(lambda: nn.Conv2d(1, 2, 3), 2, 1, 5, 5),
    "lstm": lambda: steps(lambda: nn.LSTM(4, 4), 3, 2, 4),
    "transformer": lambda: steps(lambda: nn.TransformerEncoderLayer(8, 2, 16), 3, 2, 8),
    "attention": lambda: F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2)] * 3),
    "autocast": cast,
    "hooks": hooked,
    "module to": moved,
    "data": lambda: (x := torch.ones(2), setattr(x, "data", torch.zeros(3)), x)[-1],
    "grad": lambda: (x := torch.ones(2), setattr(x, "grad", torch.zeros(2)), x.grad)[-1],
    "grad of another shape": lambda: setattr(torch.ones(2), "grad", torch.zeros(3)),
    "save": lambda: saved({"w": torch.arange(3.0)}),
    "save module": lambda: saved(nn.Linear(1, 1)).weight.device,
    "pickle": lambda: pickle.loads(pickle.dumps(torch.arange(3))),
    "deepcopy": lambda: copy.deepcopy(torch.arange(3)),
    "loader": lambda: [x[0].sum() for x in DataLoader(TensorDataset(torch.arange(4.0)), 2)],
    "compile": lambda: torch.compile(nn.Linear(1, 1)).__class__.__name__,
    "script": scripted,
    "jvp": lambda: torch.func.jvp(lambda x: x * x, (torch.ones(2),), (torch.ones(2),)),
    "vmap": lambda: torch.vmap(torch.sum)(torch.ones(2, 2)),
    "to kwargs": lambda: torch.ones(2).to(device="cpu", dtype=torch.float16, copy=True),
    "sparse": lambda: torch.eye(2).to_sparse().to_dense(),
    "fork_rng": lambda: torch.random.fork_rng().__enter__(),
    "dropout": lambda: (torch.manual_seed(3), F.dropout(torch.ones(8)))[1],
}


def text(check: Callable[[], object]) -> str:
    try:
        return repr(check())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    if sys.argv[1:] == ["after"]:
        use_simulations()
    print(json.dumps({name: text(check) for name, check in CHECKS.items()}))
