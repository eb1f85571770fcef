"""Starts the ranks of a test: threads of this process, or processes."""

import os
import subprocess
import sys
import textwrap
import threading

import invar

# Every way that data goes: the variables that choose it.
WAYS = [
    {},
    {"NCCL_SHM_DISABLE": "1", "INVAR_TRANSPORT": "socket"},
    {"NCCL_SHM_DISABLE": "1", "INVAR_TRANSPORT": "soft"},
]
TIMEOUT = 60


def threads(nranks, body, settings=None):
    """Runs ``body(comm)`` on each rank, and returns the results in the order of ranks."""
    results, errors = [None] * nranks, []
    with invar.Hub(nranks, timeout=TIMEOUT) as hub:

        def run(rank):
            try:
                with invar.Communicator.join(hub.id, rank, nranks, settings=settings) as comm:
                    results[rank] = body(comm)
            except BaseException as error:
                errors.append(error)

        ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(nranks)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join()
    if errors:
        raise errors[0]
    return results


class Process:
    """A rank in a process, which runs ``code`` with ``comm``, ``np`` and ``invar``."""

    def __init__(self, hub, rank, nranks, code, settings=None):
        # Standard input and not an argument, which other users of the host could read.
        program = (
            "import signal, sys, time, threading, numpy as np, invar\n"
            # A shell's background jobs ignore Ctrl-C, and their children with them.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "hub_id = sys.stdin.buffer.read(128)\n"
            + ("print('joins')\n" if settings else "")
            + f"with invar.Communicator.join(hub_id, {rank}, {nranks}, settings={settings}) as comm:\n"
            + textwrap.indent(textwrap.dedent(code), "    ")
        )
        self.child = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.child.stdin.write(hub.id)
        self.child.stdin.close()

    def line(self):
        return self.child.stdout.readline().decode().strip()

    def end(self):
        """Waits for the end. Returns the status and what is left of the output."""
        late = threading.Timer(TIMEOUT, self.child.kill)
        late.start()
        output = self.child.stdout.read().decode()
        late.cancel()
        self.child.stdout.close()
        return self.child.wait(TIMEOUT), output
