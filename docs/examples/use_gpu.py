"""A first lesson on GPUs: is there one, what is on it, and why must things not be mixed?

python docs/examples/use_gpu.py              # on the best device there is
python docs/examples/use_gpu.py --simulate   # as if there were two GPUs, on any machine
"""

import argparse

import torch
from torch import nn

from devicekit import Device, DeviceMismatchError, guard, same_device, to_device


class Net(nn.Module):
    """A network of one layer, guarded: a wrong device is explained, not only refused."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    @guard
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def lesson() -> None:
    """Prints the lesson, step by step."""
    print("1. Is there a GPU, how many, and what are they called?")
    gpus = [device for device in Device.available() if device.is_accelerator]
    print(f"   {len(gpus)} found: {', '.join(f'{gpu} ({gpu.name})' for gpu in gpus) or 'none'}")
    device = Device("auto")
    print(f"   the best device here: {device}", device.why and f"- {device.why}")

    print("2. A tensor lives on the CPU unless told otherwise.")
    on_cpu = torch.tensor([1.0, 2.0, 3.0])
    there = to_device(on_cpu, device)
    born_there = torch.ones(3, device=device)
    print(f"   on_cpu: {on_cpu.device}, there: {there.device}, born_there: {born_there.device}")

    print("3. The result of a calculation stays where its operands are.")
    result = there + born_there
    print(f"   {result.tolist()} on {same_device(result)}")
    print(f"   back on the CPU for NumPy: {to_device(result, 'cpu').numpy()}")

    print("4. Mixing devices raises.")
    if device.is_accelerator:
        try:
            same_device(there, on_cpu)
        except DeviceMismatchError as error:
            print(_indented(error))
    else:
        print("   with only a CPU there is nothing to mix; try --simulate")

    print("5. A model and its inputs must be on the same device.")
    model = to_device(Net(), device)
    if device.is_accelerator:
        try:
            model(on_cpu)
        except DeviceMismatchError as error:
            print(_indented(error))
    print(f"   {model(to_device(on_cpu, device)).shape} from {same_device(model)}")


def _indented(error: Exception) -> str:
    return "\n".join(f"   | {line}" for line in str(error).splitlines())


def main() -> None:
    """Reads the options and gives the lesson."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="pretend that there are two GPUs")
    if not parser.parse_args().simulate:
        lesson()
        return
    from devicekit.testing import simulate

    with simulate("sim", count=2):
        lesson()


if __name__ == "__main__":
    main()
