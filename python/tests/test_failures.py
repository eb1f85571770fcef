"""Ranks that die, leave, stay silent or are interrupted."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import weakref

import numpy as np

import invar
from ranks import TIMEOUT, Process, threads

# A rank that says who died.
OUTLIVES = """
    data = np.ones(10)
    comm.all_reduce(data)
    print("reduced")
    try:
        comm.all_reduce(data)
    except invar.Error as error:
        print(error.kind, error.rank, error.is_connection_lost)
"""


class Failures(unittest.TestCase):
    def test_a_rank_that_waits_for_long_says_for_whom(self):
        waits = "comm.all_reduce(np.ones(1))"
        late = "time.sleep(4)\ncomm.all_reduce(np.ones(1))"
        settings = {"INVAR_STALL_MS": "500"}
        with invar.Hub(2) as hub:
            ranks = [Process(hub, at, 2, code, settings) for at, code in enumerate([waits, late])]
            (status, text), other = [rank.end() for rank in ranks]
        self.assertEqual((status, other[0]), (0, 0), text)
        self.assertIn("invar: warn: ", text)
        self.assertIn("rank 1 ", text)

    def both_print(self, text, code):
        with invar.Hub(2) as hub:
            ranks = [Process(hub, rank, 2, code) for rank in range(2)]
            for rank in ranks:
                self.assertEqual(rank.end(), (0, text))

    def test_a_child_of_fork_leaves_its_parents_communicator_alone(self):
        code = """
            import os
            comm.start_all_reduce(np.ones(4)).wait()
            child = os.fork()
            if child == 0:
                sys.exit(0)
            print(os.waitpid(child, 0)[1])
            data = np.ones(4)
            comm.start_all_reduce(data).wait()
            comm.all_reduce(data)
            print(data[0])
        """
        self.both_print("0\n4.0\n", code)

    def test_a_child_of_fork_that_ends_in_an_operation_leaves_its_parents_alone(self):
        code = """
            import os
            data = np.ones(4)
            work = comm.start_all_reduce(data)
            child = os.fork()
            if child == 0:
                try:
                    comm.all_reduce(np.ones(4))
                except ValueError:
                    sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            work.wait()
            comm.all_reduce(data)
            print(data[0])
        """
        self.both_print("3\n4.0\n", code)

    def test_a_killed_rank_is_missed_though_its_child_of_fork_lives(self):
        dying = """
            import os
            comm.all_reduce(np.ones(10))
            child = os.fork()
            if child == 0:
                time.sleep(600)
            print("reduced")
            print(child)
            time.sleep(600)
        """
        with invar.Hub(2) as hub:
            ranks = [Process(hub, 0, 2, OUTLIVES), Process(hub, 1, 2, dying)]
            for rank in ranks:
                self.assertEqual(rank.line(), "reduced")
            child = int(ranks[1].line())
            try:
                begin = time.monotonic()
                ranks[1].child.kill()
                status, output = ranks[0].end()
                self.assertEqual(status, 0, output)
                self.assertEqual(output.split()[1:], ["1", "True"], output)
                self.assertLess(time.monotonic() - begin, 20)
            finally:
                os.kill(child, signal.SIGKILL)

    def test_the_others_learn_which_rank_was_killed(self):
        dying = """
            comm.all_reduce(np.ones(10))
            print("reduced")
            time.sleep(600)
        """
        with invar.Hub(3) as hub:
            ranks = [Process(hub, rank, 3, OUTLIVES if rank < 2 else dying) for rank in range(3)]
            for rank in ranks:
                self.assertEqual(rank.line(), "reduced")
            ranks[2].child.kill()
            for rank in ranks[:2]:
                status, output = rank.end()
                self.assertEqual((status, output.split()), (0, ["peer", "2", "True"]), output)
            ranks[2].end()

    def interrupted(self, code):
        """Sends SIGINT to rank 0 in `code`. Returns both ranks' outputs."""
        other = """
            try:
                comm.exchange(b"")
                comm.recv(np.ones(3), 0)
            except invar.Error as error:
                print(error.rank, error)
        """
        with invar.Hub(2) as hub:
            ranks = [Process(hub, 0, 2, code), Process(hub, 1, 2, other)]
            self.assertEqual(ranks[0].line(), "waits")
            # The line comes just before the wait.
            time.sleep(0.3)
            ranks[0].child.send_signal(signal.SIGINT)
            return [rank.end() for rank in ranks]

    def test_ctrl_c_ends_a_blocking_call_and_the_other_rank_learns_it(self):
        code = """
            comm.exchange(b"")
            print("waits")
            try:
                comm.recv(np.ones(3), 1)
            except KeyboardInterrupt:
                print("interrupted")
        """
        (status, output), (_, other) = self.interrupted(code)
        self.assertEqual((status, output), (0, "interrupted\n"))
        self.assertIn("0 rank 0: aborted: a blocking call was interrupted", other)

    def test_ctrl_c_ends_a_wait_and_leaves_the_operation(self):
        code = """
            data = np.ones(3)
            work = comm.start_recv(data, 1)
            print("waits")
            try:
                work.wait()
            except KeyboardInterrupt:
                print("interrupted", work.done())
            comm.abort("enough")
            try:
                work.wait()
            except invar.Error as error:
                print(error.rank)
        """
        with invar.Hub(2) as hub:
            ranks = [Process(hub, 0, 2, code), Process(hub, 1, 2, "time.sleep(600)")]
            self.assertEqual(ranks[0].line(), "waits")
            time.sleep(0.3)
            ranks[0].child.send_signal(signal.SIGINT)
            status, output = ranks[0].end()
            ranks[1].child.kill()
            ranks[1].end()
        self.assertEqual((status, output), (0, "interrupted False\n0\n"))

    def test_ctrl_c_ends_join(self):
        # The other rank never comes, and nobody gives it up before this test fails.
        with invar.Hub(2, timeout=600) as hub:
            long = '{"INVAR_CONNECT_TIMEOUT_MS": "600000"}'
            rank = Process(hub, 0, 2, "print('joined')", settings=long)
            self.assertEqual(rank.line(), "joins")
            time.sleep(0.3)
            rank.child.send_signal(signal.SIGINT)
            self.assertNotEqual(rank.child.wait(60), 0)
            self.assertIn("KeyboardInterrupt", rank.end()[1])

    def test_an_exception_in_a_with_block_ends_the_wait_of_the_others(self):
        def body(comm):
            if comm.rank == 1:
                raise LookupError("a fault of the program")
            with self.assertRaisesRegex(invar.Error, "left the communicator with LookupError") as it:
                comm.recv(np.empty(1), 1)
            self.assertEqual((it.exception.kind, it.exception.rank), ("peer", 1))

        with self.assertRaisesRegex(LookupError, "a fault of the program"):
            threads(2, body)

    def test_python_ends_without_a_panic_though_an_operation_is_in_progress(self):
        code = (
            "import threading, invar\n"
            "hub, comms = invar.Hub(2), [None, None]\n"
            "def join(rank):\n"
            "    comms[rank] = invar.Communicator.join(hub.id, rank, 2)\n"
            "threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]\n"
            "for thread in threads:\n"
            "    thread.start()\n"
            "for thread in threads:\n"
            "    thread.join()\n"
            "comms[0].start_recv(bytearray(8), 1)\n"
        )
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotIn("panicked", ran.stderr)

    def test_an_abort_has_its_reason(self):
        def body(comm):
            if comm.rank == 0:
                comm.abort("out of data")
            with self.assertRaisesRegex(invar.Error, "rank 0: aborted: out of data"):
                comm.barrier()
            with self.assertRaises(invar.Error):
                comm.check()

        threads(2, body)

    def test_a_silent_rank_is_named_after_the_timeout_of_the_settings(self):
        both = threading.Barrier(2)

        def body(comm):
            if comm.rank == 0:
                with self.assertRaises(invar.Error) as raised:
                    comm.barrier()
                both.wait()
                return raised.exception
            return both.wait()

        [error, _] = threads(2, body, {"INVAR_COLL_TIMEOUT_MS": "300"})
        self.assertEqual((error.rank, error.kind, error.is_timeout), (1, "peer", True))

    def test_a_wait_times_out_and_the_operation_goes_on(self):
        given_up = threading.Barrier(2)

        def body(comm):
            data = np.ones(4)
            if comm.rank == 0:
                work = comm.start_all_reduce(data)
                with self.assertRaises(TimeoutError):
                    work.wait(0.02)
                self.assertFalse(work.done())
                given_up.wait()
                work.wait(60)
            else:
                given_up.wait()
                comm.all_reduce(data)
            self.assertEqual(data.tolist(), [2.0] * 4)

        threads(2, body)

    def test_ranks_that_differ_are_told(self):
        def body(comm):
            data = np.ones(4 + comm.rank)
            with self.assertRaisesRegex(invar.Error, "all ranks must make the same calls"):
                comm.all_reduce(data)

        threads(2, body)

    def test_closing_raises_the_error_that_nobody_saw(self):
        started = threading.Barrier(2)

        def body(comm):
            if comm.rank == 0:
                comm.start_recv(np.empty(1), 1)
                started.wait()
                with self.assertRaisesRegex(invar.Error, "enough"):
                    comm.close()
            else:
                started.wait()
                comm.abort("enough")

        threads(2, body)


class Memory(unittest.TestCase):
    def test_memory_is_held_until_the_operation_is_done(self):
        proceed = threading.Barrier(2)

        def body(comm):
            data = bytearray(8)
            if comm.rank == 0:
                work = comm.start_recv(data, 1)
                with self.assertRaises(BufferError):
                    data.extend(b"more")
                proceed.wait()
                work.wait()
            else:
                proceed.wait()
                comm.send(data, 0)
            data.extend(b"more")

        threads(2, body)

    def test_a_work_that_nobody_keeps_goes_on(self):
        def body(comm):
            data = np.full(100_000, 1.0)
            kept = weakref.ref(data)
            comm.start_all_reduce(data)
            gc.collect()
            self.assertIsNotNone(kept())
            comm.barrier()
            self.assertEqual(data[-1], 2.0)

        threads(2, body)

    def test_a_dropped_communicator_ends_and_frees_its_memory(self):
        with invar.Hub(2) as hub:
            dropped = threading.Event()

            def other():
                with invar.Communicator.join(hub.id, 1, 2) as comm:
                    dropped.wait()
                    with self.assertRaisesRegex(invar.Error, "dropped with operations in progress"):
                        comm.barrier()
                done.append(True)

            done, thread = [], threading.Thread(target=other)
            thread.start()
            comm, data = invar.Communicator.join(hub.id, 0, 2), bytearray(8)
            comm.start_recv(data, 1)
            del comm
            dropped.set()
            thread.join()
            data.extend(b"free")
        self.assertEqual(done, [True])

    def test_calls_leave_no_reference(self):
        def body(comm):
            data = np.ones(100)
            before = sys.getrefcount(data)
            for _ in range(1000):
                comm.all_reduce(data, op="max")
                comm.start_broadcast(data).wait()
            self.assertEqual(sys.getrefcount(data), before)

        threads(2, body)


class Variables(unittest.TestCase):
    def test_a_misspelt_variable_is_remarked_on_once_with_settings_and_without(self):
        line = (
            "invar: warn: ENV: INVAR_STAL_MS is set, and neither Invar nor NCCL reads a variable of "
            "that name: is INVAR_STALL_MS meant?\n"
        )
        for settings in (None, {"INVAR_STALL_MS": "5000"}):
            code = (
                "import invar\n"
                "with invar.Hub(1) as hub:\n"
                f"    invar.Communicator.join(hub.id, 0, 1, settings={settings}).close()\n"
            )
            ran = subprocess.run(
                [sys.executable, "-c", code],
                env={**os.environ, "INVAR_STAL_MS": "1"},
                capture_output=True,
                text=True,
                timeout=60,
            )
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertEqual(ran.stderr.count(line), 1, ran.stderr)


class Launched(unittest.TestCase):
    def test_the_variables_of_a_launcher_bring_ranks_together(self):
        code = (
            "import invar, numpy as np\n"
            "with invar.Communicator.from_env() as comm:\n"
            "    data = np.array([comm.rank + 1])\n"
            "    comm.all_reduce(data)\n"
            "    print(comm.rank, comm.nranks, data[0])\n"
        )
        # A host of its own in loopback's network, since other tests of this machine may use the port.
        address = f"127.{os.getpid() % 200 + 1}.{os.getpid() // 200 % 250}.7"
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": "29500",
                     "TORCHELASTIC_RUN_ID": "a test"}
        children = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, **variables, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for rank in range(2)
        ]
        outputs = [child.communicate(timeout=60)[0].decode() for child in children]
        self.assertEqual(outputs, ["0 2 3\n", "1 2 3\n"])

    def test_without_a_launcher_from_env_says_so(self):
        with self.assertRaisesRegex(invar.Error, "no launcher started this process"):
            invar.Communicator.from_env()


if __name__ == "__main__":
    unittest.main()
