"""One rank of `cargo xtask bench torch`: times collectives of gloo and of Invar in one run.

Rank 0 prints a line of CSV for each operation and size: the microseconds of each backend.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import invar
import invar.torch

RANK, SIZE, PATH = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
SIZES = [8, 1 << 10, 1 << 16, 1 << 20, 1 << 26]
LIMIT = datetime.timedelta(seconds=300)
# Each round measures all backends, so that a busy minute meets all of them.
ROUNDS = 3


def seconds(call):
    """The time of a call: the mean of as many as fit a tenth of a second, at least two."""
    call()
    dist.barrier(GLOO)
    start = time.perf_counter()
    call()
    once = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(once, dist.ReduceOp.MAX, group=GLOO)
    count = int(max(2, min(2000, 0.1 / max(once.item(), 1e-6))))
    dist.barrier(GLOO)
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def operations(n):
    """The operations on `n` bytes: the name, the call of torch.distributed, that of Communicator."""
    one, many = torch.ones(n // 4), torch.ones(max(n // 4 // SIZE, 1) * SIZE)
    block, other = torch.ones(len(many) // SIZE), torch.ones(len(many))
    blocks = [torch.ones(len(block)) for _ in range(SIZE)]
    scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    # The same memory, for `Communicator`.
    one_, many_, block_, other_ = (tensor.numpy() for tensor in (one, many, block, other))
    yield "all_reduce", lambda g: dist.all_reduce(one, group=g), lambda c: c.all_reduce(one_)
    yield "broadcast", lambda g: dist.broadcast(one, 0, group=g), lambda c: c.broadcast(one_)
    yield (
        "all_gather",
        lambda g: dist.all_gather(blocks, block, group=g),
        lambda c: c.all_gather(block_, many_),
    )
    yield (
        "all_to_all",
        lambda g: dist.all_to_all_single(other, many, group=g),
        lambda c: c.all_to_all(many_, other_),
    )

    def reduce_scatter(group):
        # Gloo has none. There a program reduces all, and takes its block.
        scatter(block, many, group=group) if group is OURS else dist.all_reduce(many, group=group)

    yield "reduce_scatter", reduce_scatter, lambda c: c.reduce_scatter(many_, block_)


def step(group):
    """A step of training of a small model."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers), process_group=group)
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(8, 256)

    def run():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return run


def best(calls):
    """The best of the rounds for each call, in microseconds."""
    rounds = [[seconds(call) for call in calls] for _ in range(ROUNDS)]
    return [f"{1e6 * min(times):.1f}" for times in zip(*rounds)]


torch.set_num_threads(1)
store = dist.FileStore(PATH, SIZE)
dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=LIMIT)
GLOO, OURS = dist.new_group(backend="gloo"), dist.new_group(backend="invar")
hub = invar.Hub(SIZE) if RANK == 0 else None
ids = [hub.id if hub else None]
dist.broadcast_object_list(ids, 0)
with invar.Communicator.join(ids[0], RANK, SIZE) as alone:
    if RANK == 0:
        print(f"# torch {torch.__version__}, {SIZE} ranks over {alone.transport}", flush=True)
    for n in SIZES:
        for name, call, raw in operations(n):
            calls = [lambda: call(GLOO), lambda: call(OURS), lambda: raw(alone)]
            row = best(calls)
            if RANK == 0:
                print(",".join([name, str(n), *row]), flush=True)
    row = best([step(GLOO), step(OURS)])
    if RANK == 0:
        print(",".join(["ddp step", "", *row, ""]), flush=True)
