#!/usr/bin/env python3
"""Real NCCL through PyTorch: ranks that share one GPU, over a network, with every result checked.

    two_ranks.py [--ranks 2] [--backend nccl] [--sizes 8,4096,...] [--ops all_reduce,...]

Each rank gets a NCCL_HOSTID of its own, so that NCCL takes the ranks for hosts and uses the network. The
caller sets NCCL_NET and the plugin's variables. Each operation and size is a line of JSON. Results must be
equal to the last bit: the elements are small whole numbers, whose sums are exact in float32. The exit status
is 1 if an element is wrong. `--backend gloo` tries this program without a GPU.
"""
import argparse
import json
import os
import socket
import subprocess
import sys
import time

SIZES = [8, 256, 4096, 65536, 1 << 20, 16 << 20, 256 << 20, 1 << 30]
OPS = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
# Time for the calls of one size, and bounds on their number.
TIMED_S = 0.3
ITERS = (3, 200)
# Time that a rank has to end after another has failed.
END_WITHIN_S = 10


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--ops", default=",".join(OPS))
    return parser.parse_args()


def launch(args):
    """Starts a process for each rank, and returns the worst exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(args.ranks):
        environment = dict(os.environ, NCCL_HOSTID=f"node{rank}")
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        environment.setdefault("NCCL_DEBUG", "INFO")
        flags = ["--rank", str(rank), "--port", str(port)]
        ranks.append(
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:], *flags], env=environment)
        )
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            end(ranks)
        time.sleep(0.1)
    return max(abs(rank.wait()) for rank in ranks)


def end(ranks):
    """Ends ranks that would wait for one that has failed. First they may say what they saw of it."""
    until = time.monotonic() + END_WITHIN_S
    for rank in ranks:
        try:
            rank.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()


class Ranks:
    def __init__(self, args):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.on_gpu = args.backend == "nccl"
        self.device = torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            args.backend,
            init_method=f"tcp://127.0.0.1:{args.port}",
            rank=args.rank,
            world_size=args.ranks,
        )
        self.rank, self.all = args.rank, range(args.ranks)

    def wait(self):
        if self.on_gpu:
            self.torch.cuda.synchronize()

    def input(self, rank, count):
        numbers = self.torch.arange(count, device=self.device)
        return ((numbers * 7 + rank * 13) % 101).float()

    def reduced(self, count):
        result = self.input(0, count)
        for rank in self.all[1:]:
            result += self.input(rank, count)
        return result

    def operation(self, op, count):
        """A call, its output, and what the output must be; None if the backend lacks the operation."""
        dist, rank, nranks = self.dist, self.rank, len(self.all)
        empty = lambda size: self.torch.full((size,), -1.0, device=self.device)
        if op == "all_reduce":
            # In place: the call starts from the input each time.
            source, target = self.input(rank, count), empty(count)
            call = lambda: (target.copy_(source), dist.all_reduce(target))
            return call, target, self.reduced(count)
        # The size counts the blocks of all ranks.
        block = max(1, count // nranks)
        part = slice(rank * block, (rank + 1) * block)
        if op == "all_gather":
            source, target = self.input(rank, block), empty(block * nranks)
            want = self.torch.cat([self.input(other, block) for other in self.all])
            return (lambda: dist.all_gather_into_tensor(target, source)), target, want
        if op == "reduce_scatter" and self.on_gpu:
            source, target = self.input(rank, block * nranks), empty(block)
            want = self.reduced(block * nranks)[part]
            return (lambda: dist.reduce_scatter_tensor(target, source)), target, want
        if op == "all_to_all" and self.on_gpu:
            source, target = self.input(rank, block * nranks), empty(block * nranks)
            want = self.torch.cat([self.input(other, block * nranks)[part] for other in self.all])
            return (lambda: dist.all_to_all_single(target, source)), target, want
        if op == "send_recv":
            source, target = self.input(rank, count), empty(count)
            to, by = (rank + 1) % nranks, (rank - 1) % nranks

            def call():
                both = [
                    dist.P2POp(dist.isend, source, to),
                    dist.P2POp(dist.irecv, target, by),
                ]
                for work in dist.batch_isend_irecv(both):
                    work.wait()

            return call, target, self.input(by, count)
        return None

    def agreed(self, number):
        """Rank 0's number at all ranks. The sum also works where NCCL has no algorithm but collNet's."""
        number = number if self.rank == 0 else 0
        shared = self.torch.tensor([number], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(shared)
        return int(shared.item())

    def measure(self, op, size):
        """The seconds of a call, and how many elements are wrong; None if there is nothing to call."""
        made = self.operation(op, max(1, size // 4))
        if made is None:
            return None
        call, target, want = made
        call()
        self.wait()
        start = time.perf_counter()
        call()
        self.wait()
        fitting = TIMED_S / max(time.perf_counter() - start, 1e-6)
        iters = self.agreed(int(min(max(fitting, ITERS[0]), ITERS[1])))
        self.dist.barrier()
        start = time.perf_counter()
        for _ in range(iters):
            call()
        self.wait()
        seconds = (time.perf_counter() - start) / iters
        target.fill_(-1.0)
        call()
        self.wait()
        return seconds, int((target != want).sum().item())


def run(args):
    ranks = Ranks(args)
    bad = 0
    for op in args.ops.split(","):
        for size in map(int, args.sizes.split(",")):
            measured = ranks.measure(op, size)
            if measured is None:
                continue
            seconds, wrong = measured
            bad += wrong
            if ranks.rank == 0 or wrong:
                row = {"rank": ranks.rank, "op": op, "bytes": size}
                row["time_us"] = round(seconds * 1e6, 1)
                row["algbw_gbytes_per_s"] = round(size / seconds / 1e9, 3)
                row["wrong"] = wrong
                print(json.dumps(row), flush=True)
    ranks.dist.barrier()
    ranks.dist.destroy_process_group()
    return 1 if bad else 0


if __name__ == "__main__":
    args = arguments()
    sys.exit(launch(args) if args.rank is None else run(args))
