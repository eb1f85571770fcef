"""Every operation, in and out of place, over every way that data goes."""

import array
import asyncio
import os
import threading
import unittest

import numpy as np

import invar
from ranks import WAYS, threads

REDUCED = [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64]
REDUCED += [np.float16, np.float32, np.float64]
OPS = {
    "sum": lambda all_data: all_data.sum(0),
    "prod": lambda all_data: all_data.prod(0),
    "max": lambda all_data: all_data.max(0),
    "min": lambda all_data: all_data.min(0),
    "avg": lambda all_data: all_data.sum(0) / len(all_data),
}


def data_of(rank, shape, dtype):
    """Small numbers, so that no type overflows or rounds; even, so that the average of two is whole."""
    size = int(np.prod(shape))
    return ((np.arange(size) + rank) % 3 * 2).astype(dtype).reshape(shape)


class Operations(unittest.TestCase):
    def each_way(self, nranks, body):
        for settings in WAYS:
            with self.subTest(settings=settings):
                threads(nranks, body, settings)

    def test_all_reduce_reduces_every_type_by_every_op(self):
        def body(comm):
            for dtype in REDUCED:
                for op, want in OPS.items():
                    data = data_of(comm.rank, (7, 30), dtype)
                    both = np.stack([data_of(rank, (7, 30), dtype) for rank in range(2)])
                    expected, output = want(both).astype(dtype), np.empty_like(data)
                    comm.all_reduce(data, output, op)
                    np.testing.assert_array_equal(output, expected, f"{op} of {dtype}")
                    comm.all_reduce(data, op=op)
                    np.testing.assert_array_equal(data, expected, f"{op} of {dtype} in place")

        threads(2, body)

    def test_every_operation_over_every_way(self):
        def body(comm):
            rank, nranks = comm.rank, comm.nranks
            for count in [0, 1, 100_000]:
                own = data_of(rank, count, np.float32)
                each = [data_of(other, count, np.float32) for other in range(nranks)]
                everything = np.concatenate(each)
                equal = np.testing.assert_array_equal

                gathered = np.empty(nranks * count, np.float32)
                comm.all_gather(own, gathered)
                equal(gathered, everything)
                gathered[:] = -1
                gathered[rank * count : (rank + 1) * count] = own
                comm.all_gather(gathered)
                equal(gathered, everything)

                block = np.empty(count, np.float32)
                comm.reduce_scatter(everything, block)
                equal(block, each[rank] * nranks)
                scattered = everything.copy()
                comm.reduce_scatter(scattered)
                equal(scattered[rank * count : (rank + 1) * count], each[rank] * nranks)

                data = own.copy()
                comm.broadcast(data, root=1)
                equal(data, each[1])
                output = np.empty(count, np.float32)
                comm.broadcast(own if rank == 1 else None, output, root=1)
                equal(output, each[1])

                data = own.copy()
                comm.reduce(data, op="max", root=2)
                equal(data, np.max(each, axis=0) if rank == 2 else own)
                output = np.empty(count, np.float32)
                comm.reduce(own, output if rank == 0 else None, root=0)
                if rank == 0:
                    equal(output, np.sum(each, axis=0))

                received = np.empty_like(gathered)
                comm.all_to_all(np.repeat(np.float32(rank), nranks * count), received)
                equal(received, np.repeat(np.arange(nranks, dtype=np.float32), count))
                start = rank * nranks * count
                data = np.arange(start, start + nranks * count, dtype=np.float32)
                comm.all_to_all(data)
                blocks = np.arange(nranks * nranks * count, dtype=np.float32)
                equal(data, blocks.reshape(nranks, nranks, count)[:, rank].ravel())

                with comm.group() as group:
                    group.send(own, (rank + 1) % nranks)
                    group.recv(output, (rank - 1) % nranks)
                    group.all_reduce(data, op="min")
                    group.barrier()
                equal(output, each[(rank - 1) % nranks])
                if rank == 0:
                    comm.send(own, 2)
                elif rank == 2:
                    comm.recv(output, 0)
                    equal(output, each[0])
                comm.barrier()

        self.each_way(3, body)

    def test_started_operations_end_in_their_order(self):
        def body(comm):
            data = [np.full(50_000, 1 + n + comm.rank) for n in range(8)]
            works = [comm.start_all_reduce(each) for each in data]
            works[-1].wait()
            self.assertTrue(all(work.done() for work in works))
            for n, (work, each) in enumerate(zip(works, data)):
                work.wait(60)
                np.testing.assert_array_equal(each, np.full(50_000, 3 + 2 * n))

        self.each_way(2, body)

    def test_each_operation_starts_too(self):
        def body(comm):
            rank, own = comm.rank, np.array([comm.rank + 1])
            outputs = [np.zeros(2, int) for _ in range(5)]
            works = [
                comm.start_all_gather(own, outputs[0]),
                comm.start_reduce_scatter(np.array([rank, 10]), outputs[1][:1]),
                comm.start_all_to_all(np.array([rank, 5 + rank]), outputs[2]),
                comm.start_reduce(own, outputs[3][:1] if rank == 0 else None),
                comm.start_broadcast(own if rank == 1 else None, outputs[4][:1], root=1),
                comm.start_barrier(),
            ]
            transfer = comm.start_send(own, 1) if rank == 0 else comm.start_recv(own, 0)
            for work in [*works, transfer]:
                work.wait()
            want = [[1, 2], [[1, 20][rank], 0], [[0, 1], [5, 6]][rank], [[3, 0][rank], 0], [2, 0]]
            self.assertEqual([output.tolist() for output in outputs], want)
            self.assertEqual(own.tolist(), [1])

        threads(2, body)

    def test_a_coroutine_awaits_works(self):
        async def both(comm):
            data = [np.array([1.0, comm.rank]), np.array([2.0])]
            group = comm.group()
            group.all_reduce(data[1])
            await asyncio.gather(comm.start_all_reduce(data[0]), group.start())
            return [each.tolist() for each in data]

        results = threads(2, lambda comm: asyncio.run(both(comm)))
        self.assertEqual(results, [[[2.0, 1.0], [4.0]]] * 2)

    def test_many_awaits_share_one_thread(self):
        both = threading.Barrier(2)

        async def wait_for(work):
            await work

        async def many(comm):
            data = np.ones((500, 8))
            works = [comm.start_all_reduce(row) for row in data] if comm.rank == 0 else []
            # Two coroutines wait for each work.
            waits = [asyncio.create_task(wait_for(work)) for work in works + works]
            await asyncio.sleep(0.2)
            nthreads = len(os.listdir("/proc/self/task"))
            await asyncio.get_running_loop().run_in_executor(None, both.wait)
            if comm.rank == 1:
                for row in data:
                    comm.all_reduce(row)
            await asyncio.gather(*waits)
            return nthreads, data.min(), data.max()

        for nthreads, least, most in threads(2, lambda comm: asyncio.run(many(comm))):
            self.assertLess(nthreads, 100)
            self.assertEqual((least, most), (2.0, 2.0))

    def test_a_coroutine_gives_up_an_await_and_its_work_goes_on(self):
        given_up = threading.Event()

        async def hasty(work):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(work, 0.2)

        def body(comm):
            if comm.rank == 1:
                given_up.wait(60)
                return comm.send(np.array([7.0]), 0)
            data = np.zeros(1)
            group = comm.group()
            group.recv(data, 1)
            work = group.start()
            # The loop waits for no thread at its end.
            asyncio.run(hasty(work))
            self.assertFalse(work.done())
            given_up.set()
            work.wait()
            self.assertEqual(data.tolist(), [7.0])

        threads(2, body)

    def test_threads_of_a_rank_share_its_communicator(self):
        def body(comm):
            # Each of two threads exchanges with the thread of its kind, in one order by a lock.
            order, sums = threading.Lock(), []

            def work():
                for _ in range(50):
                    data = np.ones(100)
                    with order:
                        started = comm.start_all_reduce(data)
                    started.wait()
                    sums.append(data.sum())

            pair = [threading.Thread(target=work) for _ in range(2)]
            [thread.start() for thread in pair]
            [thread.join() for thread in pair]
            self.assertEqual(sums, [200.0] * 100)

        threads(2, body)

    def test_bytes_of_every_kind_are_carried(self):
        def body(comm):
            for make in [bytearray, lambda data: array.array("B", data), memoryview]:
                data = make(bytearray([comm.rank] * 3))
                comm.broadcast(data, root=1)
                self.assertEqual(bytes(data), b"\1\1\1")
            # The root's data is only read.
            data = b"abc" if comm.rank == 0 else bytearray(3)
            comm.broadcast(data)
            self.assertEqual(bytes(data), b"abc")
            structured = np.zeros(2, [("OP", "i4"), ("b", "f8")])
            structured["b"] = comm.rank
            comm.broadcast(structured, root=1)
            self.assertEqual(structured["b"].tolist(), [1.0, 1.0])
            truth = np.array([comm.rank == 0, False])
            comm.all_reduce(truth, op="max")
            self.assertEqual(truth.tolist(), [True, False])
            self.assertEqual(comm.exchange(bytes(comm.rank)), [b"", b"\0"])

        threads(2, body)

    def test_a_rank_alone_has_its_own_data(self):
        def body(comm):
            data, output = np.arange(3), np.empty(3, int)
            comm.all_to_all(data, output)
            with comm.group() as group:
                group.send(data, 0)
                group.recv(output, 0)
            self.assertEqual(output.tolist(), [0, 1, 2])
            return repr(comm)

        [text] = threads(1, body)
        self.assertIn("rank 0 of 1", text)


class Bfloat16(unittest.TestCase):
    def halved(self, array_of, bits_of):
        """Averages 1 and 2 as the `bfloat16` of a library."""

        def body(comm):
            data = array_of([1.0 + comm.rank] * 5)
            comm.all_reduce(data, op="avg")
            return bits_of(data)

        self.assertEqual(threads(2, body), [[0x3FC0] * 5] * 2)

    def test_ml_dtypes(self):
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        self.halved(lambda data: np.array(data, bfloat16), lambda data: data.view("u2").tolist())

    def test_an_array_that_calls_its_type_bfloat16(self):
        class Named:
            name = "bfloat16"

        class Upper(np.ndarray):
            """The upper halves of floats, as ml_dtypes lays them out."""

            dtype = Named()

        def upper(data):
            return (np.array(data, "f4").view("u4") >> 16).astype("u2").view(Upper)

        self.halved(upper, lambda data: np.asarray(data.view(np.ndarray)).tolist())

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.halved(
            lambda data: torch.tensor(data, dtype=torch.bfloat16),
            lambda data: data.view(torch.int16).tolist(),
        )


class DLPack(unittest.TestCase):
    class Lender:
        """Lends by DLPack alone."""

        def __init__(self, array, device=1):
            self.array, self.device = array, device

        def __dlpack__(self):
            return self.array.__dlpack__()

        def __dlpack_device__(self):
            return (self.device, 0)

    def test_memory_is_borrowed_and_given_back(self):
        def body(comm):
            data = np.full((3, 4), 1.0 + comm.rank)
            lender = self.Lender(data)
            comm.all_reduce(lender)
            return data.tolist()

        self.assertEqual(threads(2, body), [[[3.0] * 4] * 3] * 2)

    def test_scattered_and_foreign_memory_is_refused(self):
        def body(comm):
            scattered = self.Lender(np.ones((4, 4))[:, ::2])
            with self.assertRaisesRegex(ValueError, "contiguous copy"):
                comm.all_reduce(scattered)
            with self.assertRaisesRegex(TypeError, "type 2: collectives work on memory of the host"):
                comm.all_reduce(self.Lender(np.ones(4), device=2))

        threads(1, body)


class Refused(unittest.TestCase):
    """What a call refuses leaves the communicator whole."""

    def test_wrong_arguments_are_named(self):
        readonly = np.zeros(4)
        readonly.flags.writeable = False
        eight = np.zeros(8)
        cases = [
            (TypeError, "list lends no memory", lambda c: c.all_reduce([1, 2])),
            (TypeError, "neither data nor", lambda c: c.broadcast(None)),
            (TypeError, "of double, and the output of float",
             lambda c: c.all_reduce(eight, np.zeros(8, "f4"))),
            (TypeError, "can't be reduced; known are", lambda c: c.all_reduce(np.zeros(1, "c8"))),
            (TypeError, "can't be reduced", lambda c: c.all_reduce(np.zeros(1, "i2"))),
            (TypeError, "truth values have no sum", lambda c: c.all_reduce(np.zeros(1, bool))),
            (TypeError, "byte order", lambda c: c.all_reduce(np.zeros(1, ">f4"))),
            (TypeError, "objects of Python", lambda c: c.broadcast(np.array([{}], dtype=object))),
            (TypeError, "objects of Python", lambda c: c.broadcast(np.zeros(1, [("N", "i4"), ("a", "O")]))),
            (ValueError, "no such reduction", lambda c: c.all_reduce(eight, op="mean")),
            (ValueError, "read-only", lambda c: c.all_reduce(readonly)),
            (ValueError, "contiguous copy", lambda c: c.all_reduce(eight[::2])),
            (ValueError, "overlap", lambda c: c.all_reduce(eight[:4], eight[3:7])),
            (ValueError, "not aligned",
             lambda c: c.all_reduce(np.frombuffer(bytearray(9), "u1")[1:].view("f8"))),
            (ValueError, "peer 2 where the ranks are 0 to 1", lambda c: c.send(eight, 2)),
            (ValueError, "root 7", lambda c: c.broadcast(eight, root=7)),
            (ValueError, "sends to itself 1 times", lambda c: c.send(eight, c.rank)),
            (ValueError, "timeout", lambda c: c.start_barrier().wait(-1)),
            (invar.Error, "output of 9 elements; rank . of 2 needs 16",
             lambda c: c.all_gather(eight, np.zeros(9))),
        ]

        def body(comm):
            for kind, text, call in cases:
                with self.subTest(text), self.assertRaisesRegex(kind, text):
                    call(comm)
            group = comm.group()
            group.send(eight, 1 - comm.rank)
            group.recv(eight, 1 - comm.rank)
            with self.assertRaisesRegex(ValueError, "operations 0 and 1 of the group overlap"):
                group.run()
            comm.barrier()

        threads(2, body)

    def test_joining_names_what_is_wrong(self):
        join = invar.Communicator.join
        with self.assertRaisesRegex(ValueError, "id of 3 bytes: the id of a hub has 128"):
            join(b"abc", 0, 1)
        with invar.Hub(1) as hub:
            with self.assertRaisesRegex(ValueError, "INVAR_NOTHING is no setting"):
                join(hub.id, 0, 1, settings={"INVAR_NOTHING": "1"})
            with self.assertRaisesRegex(invar.Error, "INVAR_TRANSPORT") as raised:
                join(hub.id, 0, 1, settings={"INVAR_TRANSPORT": "pigeon"})
            self.assertEqual(raised.exception.kind, "usage")
            with join(hub.id, 0, 1) as comm:
                comm.barrier()
            self.assertIn("closed", repr(comm))
            with self.assertRaisesRegex(ValueError, "closed"):
                comm.barrier()
            comm.close()
        with self.assertRaisesRegex(ValueError, "not an IP address and port"):
            invar.Hub(1, "localhost")
        with self.assertRaises(invar.Error):
            invar.Hub(0)


if __name__ == "__main__":
    unittest.main()
