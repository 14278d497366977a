"""Train a small CNN on scikit-learn's handwritten digits, on the best device there is.

python docs/examples/train_digits.py
python docs/examples/train_digits.py --device cuda --epochs 5
"""

import argparse
import time
from collections.abc import Iterable
from typing import TypedDict

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from devicekit import DataLoader, Device, guard, to_device


class Target(TypedDict):
    """What is known about a picture."""

    digit: Tensor
    index: Tensor


class Sample(TypedDict):
    """One picture, float32[1, 8, 8], and its target."""

    image: Tensor
    target: Target


class Digits(Dataset[Sample]):
    """The 1797 handwritten digits of 8 x 8 pixels; every fifth one is kept for testing."""

    def __init__(self, train: bool) -> None:
        images, digits = load_digits(return_X_y=True)
        self.index = [i for i in range(len(images)) if (i % 5 != 0) == train]
        self.images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.digits = torch.tensor(digits)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Sample:
        i = self.index[position]
        return {
            "image": self.images[i],
            "target": {"digit": self.digits[i], "index": torch.tensor(i)},
        }


class Net(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(64 * 4 * 4, 10),
        )

    @guard
    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


def train_epoch(
    model: nn.Module, batches: Iterable[Sample], optimizer: torch.optim.Optimizer
) -> int:
    """Trains on each batch once and returns how many samples there were."""
    model.train()
    samples = 0
    for batch in batches:
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["target"]["digit"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(batch["image"])
    return samples


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[Sample]) -> float:
    """The share of the pictures whose digit the model names."""
    model.eval()
    right = total = 0
    for batch in batches:
        digits = batch["target"]["digit"]
        right += int((model(batch["image"]).argmax(dim=1) == digits).sum())
        total += len(digits)
    return right / total


def main() -> None:
    """Reads the options, trains, and prints the accuracy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, gpu, cuda, cuda:1, mps, cpu, ...")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    torch.manual_seed(0)
    device = Device(options.device)
    print(f"device: {device} ({device.name})", device.why and f"- {device.why}")

    train = DataLoader(
        Digits(train=True),
        batch_size=64,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        device=device,
    )
    test = DataLoader(Digits(train=False), batch_size=360, device=device)

    model = to_device(Net(), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    samples, start = 0, time.perf_counter()
    for _ in tqdm(range(options.epochs), unit="epoch"):
        samples += train_epoch(model, train, optimizer)
    seconds = time.perf_counter() - start

    print(f"{samples / seconds:.0f} samples per second")
    print(f"test accuracy: {accuracy(model, test):.2%}")


if __name__ == "__main__":
    main()
