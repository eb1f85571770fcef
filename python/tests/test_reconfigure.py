"""Ranks that are killed at random, amid operations. The ranks that are left go on in a new communicator."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
import unittest

import invar
from ranks import WAYS

try:
    import torch.distributed as dist
except ImportError:
    dist = None

NRANKS = 4
# Half of the kills take at most so long, on a busy machine too.
PROMISED_S = 2.0
# A machine that is busy with other tests may take so long for one kill.
BOUND_S = 10.0
# How long each of the two tests kills ranks.
LASTS_S = float(os.environ.get("INVAR_TEST_RECONFIGURE_S", "10"))

# A rank gets its next communicator by a line: its number, the number of ranks, and where they meet.
PLAIN = """
import sys, numpy as np, invar
for line in sys.stdin:
    rank, size, meet = line.split()
    rank, size, hub = int(rank), int(size), None
    if rank == 0:
        hub = invar.Hub(size, timeout=20)
        print(hub.id.hex(), flush=True)
    else:
        meet = sys.stdin.readline().strip()
    hub_id = hub.id if hub else bytes.fromhex(meet)
    comm, count = invar.Communicator.join(hub_id, rank, size), 0
    try:
        while True:
            data = np.ones(1 << count % 18)
            comm.all_reduce(data)
            assert data[-1] == size, data
            if count == 0:
                print("runs", flush=True)
            count += 1
    except invar.Error as error:
        lost = error.rank
    comm.close()
    if hub:
        hub.close()
    print("lost", lost, flush=True)
"""
TORCH = """
import datetime, gc, sys, weakref, torch, torch.distributed as dist, invar, invar.torch
# What a failed group keeps is free once the group is destroyed.
gc.disable()
host, port = sys.argv[1:]
store = dist.TCPStore(host, int(port), None, False)
for line in sys.stdin:
    rank, size, meet = line.split()
    rank, size, count = int(rank), int(size), 0
    dist.init_process_group("invar", store=dist.PrefixStore(meet, store), rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=20))
    kept = weakref.ref(dist.distributed_c10d._get_default_group())
    try:
        while True:
            data = torch.ones(1 << count % 18)
            work = dist.all_reduce(data, async_op=count % 2 == 1)
            if work is not None:
                work.wait()
            assert data[-1] == size, data
            if count == 0:
                print("runs", flush=True)
            count += 1
    except invar.Error as error:
        lost = error.rank
    work = None
    dist.destroy_process_group()
    assert kept() is None, gc.get_referrers(kept())
    print("lost", lost, flush=True)
"""


class Rank:
    """A process that is a rank of one communicator after the other."""

    def __init__(self, code, arguments, variables):
        self.child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )

    def tell(self, *words):
        self.child.stdin.write((" ".join(map(str, words)) + "\n").encode())
        self.child.stdin.flush()

    def line(self):
        """The next line, or what there is of it once the process has ended or is late."""
        late = threading.Timer(6 * BOUND_S, self.child.kill)
        late.start()
        line = self.child.stdout.readline().decode().strip()
        late.cancel()
        return line

    def end(self):
        self.child.kill()
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


class Reconfigure(unittest.TestCase):
    def start(self, ranks, meet):
        """Brings ranks together, until each has done an operation."""
        for number, rank in enumerate(ranks):
            rank.tell(number, len(ranks), meet)
        if meet == "hub":
            hub_id = ranks[0].line()
            for rank in ranks[1:]:
                rank.tell(hub_id)
        for rank in ranks:
            self.assertEqual(rank.line(), "runs")

    def kill_at_random(self, code, arguments, meets):
        """Kills one rank after the other until one is left, again and again."""
        seed = random.randrange(1 << 32)
        chance, times, end = random.Random(seed), [], time.monotonic() + LASTS_S
        print(f"\nseed {seed}")
        while not times or time.monotonic() < end:
            variables = chance.choice(WAYS)
            ranks = [Rank(code, arguments, variables) for _ in range(NRANKS)]
            try:
                self.start(ranks, next(meets))
                while len(ranks) > 1:
                    time.sleep(chance.uniform(0, 0.1))
                    number = chance.randrange(len(ranks))
                    killed, since = ranks.pop(number), time.monotonic()
                    killed.end()
                    for rank in ranks:
                        self.assertEqual(rank.line(), f"lost {number}", f"seed {seed}, {variables}")
                    lost = time.monotonic() - since
                    self.start(ranks, next(meets))
                    times.append((time.monotonic() - since, lost, number, len(ranks), variables))
            finally:
                for rank in ranks:
                    rank.end()
        slowest = max(times)
        middle = sorted(times)[len(times) // 2]
        print(f"{len(times)} times, seconds: {middle[0]:.3f} in the middle, at most {slowest}")
        self.assertLess(middle[0], PROMISED_S, f"seed {seed}")
        self.assertLess(slowest[0], BOUND_S, f"seed {seed}")

    def test_the_ranks_that_are_left_meet_in_a_new_communicator(self):
        self.kill_at_random(PLAIN, [], itertools.repeat("hub"))

    @unittest.skipIf(dist is None, "torch is not installed")
    def test_the_ranks_that_are_left_meet_in_a_new_group(self):
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        meets = (f"group-{count}" for count in itertools.count())
        self.kill_at_random(TORCH, [store.host, str(store.port)], meets)


if __name__ == "__main__":
    unittest.main()
