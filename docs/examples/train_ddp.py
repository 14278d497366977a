"""The training of train_digits.py on several processes, each with its share of the data.

torchrun --nproc-per-node=2 docs/examples/train_ddp.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm
from train_digits import Digits, Net, accuracy, train_epoch

from devicekit import DataLoader, Device, to_device


def main() -> None:
    """Trains one rank; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, gpu, cuda, cpu, ...")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    # Under torchrun, Device("cuda") is the card of this process: cuda:LOCAL_RANK.
    device = Device(options.device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {ranks}: {device} ({device.name})")

    torch.manual_seed(0)
    # Each rank gets its share: the loader adds a DistributedSampler and shuffles anew each epoch.
    train = DataLoader(
        Digits(train=True),
        batch_size=64 // ranks,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        device=device,
    )
    model = to_device(Net(), device)
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(replica.parameters(), lr=2e-3)

    samples, start = 0, time.perf_counter()
    for _ in tqdm(range(options.epochs), unit="epoch", disable=rank != 0):
        samples += train_epoch(replica, train, optimizer)
    seconds = time.perf_counter() - start
    print(f"rank {rank}: {samples} samples, {samples / seconds:.0f} per second")

    # Every rank tests its share; BatchNorm's statistics differ a little, so rank 0's are used.
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    test = DataLoader(Digits(train=False), batch_size=360, device=device)
    share = to_device(torch.tensor([accuracy(model, test)]), device)
    dist.all_reduce(share)
    if rank == 0:
        print(f"test accuracy: {share.item() / ranks:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
