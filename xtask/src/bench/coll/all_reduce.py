"""Measures torch.distributed.all_reduce of floats over gloo, in argv[1] processes, as all_reduce.c does.

The sizes go from argv[2] to argv[3] bytes by a factor of argv[4]. For each size the program makes argv[5]
calls to warm up, and then argv[6] calls that count. It prints a line "bytes µs" with the slowest rank's
time for a call. It checks the sum of each size once.
"""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def measure(rank, store, nranks, begin, end, factor, warmup, iterations):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=nranks)
    size = begin
    while size <= end:
        # The sum replaces the input. Zeros stay zeros after any number of sums.
        zeros = torch.zeros(size // 4)
        for _ in range(warmup):
            dist.all_reduce(zeros)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(zeros)
        took = torch.tensor([(time.perf_counter() - start) * 1e6 / iterations])
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        pattern = torch.arange(size // 4).remainder(7).float()
        total = pattern + rank
        dist.all_reduce(total)
        if not torch.equal(total, pattern * nranks + nranks * (nranks - 1) // 2):
            raise ValueError(f"rank {rank}: a wrong sum among {size} bytes")
        if rank == 0:
            print(size, took.item(), flush=True)
        size *= factor
    dist.destroy_process_group()


if __name__ == "__main__":
    nranks, *sizes = map(int, sys.argv[1:])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (os.path.join(folder, "store"), nranks, *sizes), nranks)
