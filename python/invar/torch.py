"""The backend "invar" of torch.distributed, for tensors of the CPU.

Importing this module registers the backend::

    import torch.distributed as dist
    import invar.torch

    dist.init_process_group("invar")
    dist.all_reduce(torch.ones(1000))

It has the collectives of gloo, ``new_group``, works, futures and timeouts, and moves DDP's gradients.
``monitored_barrier`` of this module stands for that of torch.distributed, which takes gloo alone.
"""

import atexit
import contextlib
import copy
import datetime
import functools
import hashlib
import ipaddress
import os
import queue
import socket
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import invar
from invar._invar import _close_all, _Lent

__all__ = ["ProcessGroupInvar", "monitored_barrier"]

# The names of the types that the library reduces; others are carried as they are.
_NAMES = {
    torch.bool: "bool",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
# The library's name of a reduction, or the function that reduces the gathered tensors. A reduction hashes to its
# number, whichever of PyTorch's two types it has. To compare one with each of these takes microseconds.
_OPS = {
    hash(dist.ReduceOp.SUM): "sum",
    hash(dist.ReduceOp.AVG): "avg",
    hash(dist.ReduceOp.MAX): "max",
    hash(dist.ReduceOp.MIN): "min",
    hash(dist.ReduceOp.PRODUCT): "prod",
    hash(dist.ReduceOp.BAND): torch.bitwise_and,
    hash(dist.ReduceOp.BOR): torch.bitwise_or,
    hash(dist.ReduceOp.BXOR): torch.bitwise_xor,
}
# The or of truth values is their maximum, and the and their minimum.
_OF_TRUTH = {"sum": "max", "prod": "min"}
# Addresses of no host (RFC 5737, RFC 3849): the way to them is the way to other networks.
_ELSEWHERE = "192.0.2.1", "2001:db8::1"
# The transfers that have not started, and their lock.
_GATHERED = weakref.WeakSet()
_GATHERED_LOCK = threading.Lock()
# The groups that exist. A program that ends closes them.
_GROUPS = weakref.WeakSet()
# The threads that complete futures, until the program ends, and the lock of both.
_COMPLETING = weakref.WeakSet()
_COMPLETING_LOCK = threading.Lock()
_program_ends = False
# A program that ends waits for them this long: a callback may wait for what no rank sends any more.
_COMPLETED_WITHIN = 5.0
# A hub passes on within this time, in seconds, that its own rank has left.
_PASSED_ON_WITHIN = 0.1
# A rank waits this much longer than its timeout for the answer of rank 0 in a monitored barrier.
_ANSWER_WITHIN = datetime.timedelta(seconds=10)
# A list of outputs of at least these bytes each is filled by broadcasts, since a copy would take longer.
_LONG = 1 << 20


def _is_lazy(tensor):
    """Whether the numbers are the conjugates or the negatives of those in memory."""
    return tensor.is_conj() or tensor.is_neg()


def _lent(tensor):
    """The memory of a tensor, as the native module takes it."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the backend invar has tensors of the CPU, and not of {tensor.device}: for these make a group of"
            " another backend, and one of invar beside it with new_group(backend='invar')"
        )
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise ValueError("the backend invar needs dense and contiguous tensors: call contiguous()")
    if _is_lazy(tensor):
        raise ValueError(
            "the backend invar takes no lazy conjugate or negative of a tensor: call resolve_conj() or resolve_neg()"
        )
    length = tensor.numel() * tensor.element_size()
    return _Lent(tensor, tensor.data_ptr(), length, _NAMES.get(tensor.dtype, "opaque"))


def _only(tensors):
    """The only tensor of a list."""
    if len(tensors) != 1:
        raise ValueError(f"the backend invar takes one tensor for each rank, and not {len(tensors)}")
    return tensors[0]


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _overlap(one, other):
    """Whether two dense tensors share memory."""
    first, second = one.data_ptr(), other.data_ptr()
    return first < second + _bytes(other) and second < first + _bytes(one)


def _apart(tensor, other):
    """A tensor with the same numbers that shares no memory with the other one."""
    return tensor.clone() if _overlap(tensor, other) else tensor


def _is_plain(tensor, dtype):
    """Whether the library can receive numbers of a type into the tensor."""
    return tensor.is_contiguous() and tensor.dtype is dtype and not _is_lazy(tensor)


def _joined(outputs, dtype):
    """One tensor over outputs that lie side by side in memory, or None."""
    first = outputs[0]
    start, size = first.data_ptr(), _bytes(first)
    for i, output in enumerate(outputs):
        if output.data_ptr() != start + i * size or not _is_plain(output, dtype):
            return None
    with contextlib.suppress(RuntimeError):
        # This fails if the memory is that of several tensors.
        return first.as_strided((len(outputs) * first.numel(),), (1,))


def _reduction(op, dtype):
    """The library's name of a reduction, or the function of a bitwise one."""
    reduction = _OPS.get(hash(op))
    if reduction is None:
        raise ValueError(f"the backend invar has no reduction {op}")
    return _OF_TRUTH.get(reduction, reduction) if dtype is torch.bool else reduction


def _name(op, dtype):
    """The library's name of a reduction."""
    name = _reduction(op, dtype)
    if not isinstance(name, str):
        raise ValueError(f"the backend invar has no reduction {op} here")
    return name


def _in_order(tensor):
    """The tensor, or a contiguous copy if its elements lie in another order without gaps, as in channels_last.
    The copy has the order of the indices, so that the ranks' tensors may lie in different orders."""
    if tensor.layout is not torch.strided or tensor.is_contiguous() or _is_lazy(tensor):
        return tensor
    by_stride = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    is_dense = tensor.permute(by_stride).is_contiguous()
    return tensor.detach().contiguous() if is_dense else tensor


def _reducible(tensor):
    """A tensor with the same numbers, and with a type and an order that the library reduces."""
    return _in_order(tensor.to(torch.int32) if tensor.dtype is torch.int16 else tensor)


def _back(data, tensor):
    """A function that copies the result of an operation in place from `data` to the tensor, or None if `data` is the
    tensor. Autograd does not notice the copy, as it does not notice an operation in place."""
    return None if data is tensor else lambda: tensor.detach().copy_(data)


def _add_all_reduce(calls, data, name):
    calls.all_reduce(data, op=name)


def _is_kept_by_python():
    """Whether Python's part of torch.distributed makes this call. The caller keeps the work that it gets."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame is not None and frame.f_globals is vars(c10d)


def _seconds(timeout):
    """The seconds of a timedelta, or None for no timeout of its own."""
    if timeout is None or timeout <= datetime.timedelta(0):
        return None
    return timeout.total_seconds()


class _Work(c10d.Work):
    """An operation in progress. `started` returns the native work, once the operation has started."""

    def __init__(self, group, started, result, finish=None, is_transfer=False):
        super().__init__()
        # The group, and what the work waits for, until it is over.
        self._pending = group, started
        self._result, self._finish = result, finish
        self._future, self._lock, self._error = None, threading.Lock(), None
        self._is_transfer = is_transfer
        if not _is_kept_by_python():
            # C++ keeps its part of the work alone, and without Python's part would wait for ever. C++ may wait for
            # a work long after the operation is done.
            group._works.add(self)

    def wait(self, timeout=None):
        _start_transfers()
        self._await(timeout)
        if self._error is not None:
            # The traceback of what is raised keeps this work, and the frames of torch.distributed the group.
            raise copy.copy(self._error)
        return True

    def _await(self, timeout=None):
        """Waits until the work is over, and keeps its error."""
        pending = self._pending
        if pending is None:
            return
        group, started = pending
        try:
            started().wait(_seconds(timeout))
            with self._lock:
                finish, self._finish = self._finish, None
                if finish is not None:
                    finish()
        except TimeoutError as error:
            raise RuntimeError(f"the backend invar timed out: {error}") from None
        except Exception as error:
            # The frames of a traceback would keep the group, and with it the communicator.
            self._error = error.with_traceback(None)
            if getattr(error, "is_connection_lost", False):
                # What ends one communicator of the group ends both.
                group._abort(f"the group has failed: {error}")
        self._pending = None
        # The group need not keep the work, and with it the outputs, any longer.
        group._works.discard(self)

    def synchronize(self):
        self.wait()

    def is_completed(self):
        pending = self._pending
        if pending is not None:
            if not pending[1]().done():
                return False
            # The outputs must be there, and the wait fills some of them.
            self._await()
        return True

    def is_success(self):
        return self.is_completed() and self.exception() is None

    def exception(self):
        self.is_completed()
        return self._error

    def result(self):
        return self._result

    def get_future(self):
        with self._lock:
            pending = self._pending
            if self._future is None:
                self._future = torch.futures.Future()
                if pending is None:
                    self._complete()
                else:
                    pending[0]._settle(self)
        return self._future

    def _complete(self):
        """Completes the future of a work that is over."""
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)

    def source_rank(self):
        raise RuntimeError("the backend invar receives from named ranks only")


class _Transfers:
    """Sends and receives of a thread that start together, so that ranks which send to each other do not wait."""

    def __init__(self, group):
        self._group, self.calls, self._native = group, group._pairs.group(), None
        self._refused, self._thread = None, threading.current_thread()
        with _GATHERED_LOCK:
            _GATHERED.add(self)

    def started(self):
        with self._group._order:
            if self._group._transfers.get(self._thread) is self:
                del self._group._transfers[self._thread]
            if self._refused is not None:
                raise self._refused
            if self._native is None:
                with _GATHERED_LOCK:
                    _GATHERED.discard(self)
                try:
                    self._native = self.calls.start(background=False)
                except Exception as error:
                    # None of the transfers has started, so that none is done.
                    self._refused = error
                    raise
        return self._native


def _start_transfers():
    """Starts the transfers of this thread in all groups, since it waits now: another rank may need them first."""
    if not _GATHERED:
        return
    thread = threading.current_thread()
    with _GATHERED_LOCK:
        gathered = [transfers for transfers in _GATHERED if transfers._thread is thread]
    for transfers in gathered:
        # Those who wait for the transfers get the error.
        with contextlib.suppress(Exception):
            transfers.started()


class _Hubs:
    """The hubs of a group, which only rank 0 has. A hub serves ranks that are late, for at most two seconds more.
    The program's end waits for that, and `close` does not."""

    def __init__(self, hubs):
        self._hubs = hubs

    def take(self):
        """Returns the hubs, once."""
        hubs, self._hubs = self._hubs, []
        return hubs

    def close(self):
        hubs = self.take()
        if not hubs:
            return
        closing = threading.Thread(target=_close_all, args=([], hubs), name="invar-hubs", daemon=False)
        try:
            closing.start()
        except RuntimeError:
            # Python starts no thread when the program ends.
            _close_all([], hubs)
        else:
            # `os._exit` may follow. The other ranks must know by then that this one has left.
            closing.join(_PASSED_ON_WITHIN)

    __del__ = close


class ProcessGroupInvar(dist.ProcessGroup):
    """A process group whose ranks are those of a communicator of Invar."""

    # PyTorch 2 asks these of the backends that are registered in a group, and this group is its own backend.
    group_name = ""
    supports_splitting = False
    _device_types = [torch.device("cpu")]

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        # The transfers of each thread that have not started.
        self._order, self._transfers = threading.RLock(), {}
        self._works, self._unsettled = set(), {}
        # The number of monitored barriers, and of those whose keys are gone from the store.
        self._barriers = self._deleted = 0
        # The communicators go first if nobody calls `shutdown`: the hubs serve until their ranks have left.
        # Operations of a communicator run one after the other. Transfers have a communicator of their own, so that a
        # receive may wait for a send that comes after a collective.
        (self._comm, self._pairs), hubs, self._key = _join(store, rank, size, timeout)
        self._hubs = _Hubs(hubs)
        _GROUPS.add(self)

    def name(self):
        return "invar"

    def getBackendName(self):
        return "invar"

    _get_backend_name = getBackendName

    def _get_backend(self, device):
        return self

    def _set_group_name(self, name):
        self.group_name = name

    def __repr__(self):
        return f"<ProcessGroupInvar {self._comm!r}>"

    def shutdown(self):
        """Leaves the communicator."""
        for works in self._unsettled.values():
            works.put(None)
        self._works.clear()
        # The stack closes all of them, the last one first, whichever fails.
        with contextlib.ExitStack() as stack:
            for part in self._hubs, self._pairs, self._comm:
                stack.callback(part.close)

    def abort(self):
        """Ends the communicator on all ranks."""
        self._abort("torch.distributed aborted the process group")

    def _abort(self, reason):
        for communicator in self._comm, self._pairs:
            # The other one may be closed.
            with contextlib.suppress(ValueError):
                communicator.abort(reason)

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    def _run(self, result, fill, finish=None):
        """Starts the calls that `fill` adds to a group. They move in `wait`, or after some
        milliseconds by themselves."""
        with self._order:
            calls = self._comm.group()
            fill(calls)
            native = calls.start(background=False)
        return _Work(self, lambda: native, result, finish)

    def _settle(self, work):
        """Completes the future of a work in a thread. Collectives and transfers have a thread each, since neither
        wait for the other."""
        with self._order:
            works = self._unsettled.get(work._is_transfer)
            if works is None:
                works = self._unsettled[work._is_transfer] = queue.SimpleQueue()
                _start_settler(works)
                # The thread ends with the group.
                weakref.finalize(self, works.put, None)
        works.put(work)

    def _reduce(self, tensor, op, add):
        """Returns two functions for a reduction of a tensor in place: `fill(calls)` adds the call, by
        `add(calls, data, name)` if the library has the reduction, and `finish`, which may be None, writes the
        result."""
        reduction = _reduction(op, tensor.dtype)
        if isinstance(reduction, str):
            data = _reducible(tensor)
            return lambda calls: add(calls, _lent(data), reduction), _back(data, tensor)
        data, gathered = _in_order(tensor), tensor.new_empty((self._size, *tensor.shape))
        finish = lambda: tensor.copy_(functools.reduce(reduction, gathered.unbind()))
        return lambda calls: calls.all_gather(_lent(data), _lent(gathered)), finish

    def allreduce(self, tensors, opts=None):
        tensor = _only([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM if opts is None else opts)
        return self._run([tensor], *self._reduce(tensor, op, _add_all_reduce))

    def allreduce_coalesced(self, tensors, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        parts = [self._reduce(tensor, op, _add_all_reduce) for tensor in tensors]

        def fill(calls):
            for fill_part, _ in parts:
                fill_part(calls)

        def finish():
            for _, finish_part in parts:
                if finish_part is not None:
                    finish_part()

        return self._run(tensors, fill, finish)

    def broadcast(self, tensors, opts):
        tensor, root = _only(tensors), opts.rootRank
        data = _in_order(tensor)
        fill = lambda calls: calls.broadcast(_lent(data), root=root)
        return self._run([tensor], fill, _back(data, tensor))

    def reduce(self, tensors, opts):
        tensor, root, op = _only(tensors), opts.rootRank, opts.reduceOp
        add = lambda calls, data, name: calls.reduce(data, op=name, root=root)
        fill, finish = self._reduce(tensor, op, add)
        return self._run([tensor], fill, finish if self._rank == root else None)

    def allgather(self, output_lists, inputs, opts=None):
        return self._gather_all([_only(output_lists)], [_only(inputs)])

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        # There is one list for each rank.
        if any(len(outputs) != len(inputs) for outputs in output_lists):
            raise ValueError("all_gather_coalesced: each rank's list needs an output for each input")
        return self._gather_all([list(outputs) for outputs in zip(*output_lists)], inputs)

    def _gather_all(self, output_lists, inputs):
        inputs = [_in_order(tensor) for tensor in inputs]
        for outputs, tensor in zip(output_lists, inputs):
            if len(outputs) != self._size or any(each.numel() != tensor.numel() for each in outputs):
                raise ValueError(f"all_gather: {self._size} outputs as long as the input are needed")
        copies = []

        def fill(calls):
            for outputs, tensor in zip(output_lists, inputs):
                # All ranks decide alike, by the size alone.
                if _bytes(tensor) >= _LONG:
                    self._add_broadcasts(calls, tensor, outputs, copies)
                    continue
                whole = _joined(outputs, tensor.dtype)
                if whole is None:
                    whole = tensor.new_empty((self._size, *tensor.shape))
                    copies.extend(zip(outputs, whole))
                self._add_all_gather(calls, tensor, whole)

        def finish():
            for output, data in copies:
                output.copy_(data.view_as(output))

        return self._run(output_lists, fill, finish)

    def _add_broadcasts(self, calls, tensor, outputs, copies):
        """Adds a broadcast of each rank's tensor into its output. `copies` gets the copies to make afterwards."""
        own = outputs[self._rank]
        if own.data_ptr() != tensor.data_ptr() and any(_overlap(tensor, each) for each in outputs):
            tensor = tensor.clone()
        for root, output in enumerate(outputs):
            data = output
            if not _is_plain(output, tensor.dtype):
                data = tensor.new_empty(tensor.shape)
                copies.append((output, data))
            if root == self._rank and data.data_ptr() != tensor.data_ptr():
                calls.broadcast(_lent(tensor), _lent(data), root=root)
            else:
                calls.broadcast(_lent(data), root=root)

    def _allgather_base(self, output, tensor, opts=None):
        return self._run([output], lambda calls: self._add_all_gather(calls, tensor, output))

    def _add_all_gather(self, calls, tensor, output):
        size = _bytes(tensor)
        own = output.data_ptr() + self._rank * size
        if tensor.data_ptr() == own and _bytes(output) == self._size * size:
            calls.all_gather(_lent(output))
        else:
            calls.all_gather(_lent(_apart(tensor, output)), _lent(output))

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        def fill(calls):
            for output, tensor in zip(outputs, inputs):
                self._add_all_gather(calls, tensor, output)

        return self._run(outputs, fill)

    def gather(self, output_lists, inputs, opts):
        tensor, root = _only(inputs), opts.rootRank
        outputs = _only(output_lists) if self._rank == root else []

        def fill(calls):
            calls.send(_lent(_apart(tensor, outputs[root]) if outputs else tensor), root)
            for peer, output in enumerate(outputs):
                calls.recv(_lent(output), peer)

        return self._run(outputs, fill)

    def scatter(self, outputs, input_lists, opts):
        output, root = _only(outputs), opts.rootRank
        inputs = _only(input_lists) if self._rank == root else []

        def fill(calls):
            for peer, tensor in enumerate(inputs):
                calls.send(_lent(_apart(tensor, output)), peer)
            calls.recv(_lent(output), root)

        return self._run([output], fill)

    def reduce_scatter(self, outputs, input_lists, opts=None):
        output, inputs = _only(outputs), _only(input_lists)
        # The library would cut the inputs evenly. All ranks have the same list, so that all of them refuse it.
        if len(inputs) != self._size or any(tensor.numel() != output.numel() for tensor in inputs):
            raise ValueError(f"reduce_scatter: {self._size} inputs as long as the output are needed")
        flat = torch.cat([tensor.reshape(-1) for tensor in inputs])
        return self._reduce_scatter_base(output, flat, opts)

    def _reduce_scatter_base(self, output, tensor, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        if not isinstance(_reduction(op, tensor.dtype), str) or output.dtype is torch.int16:
            whole = tensor.clone(memory_format=torch.contiguous_format)
            fill, reduce = self._reduce(whole, op, _add_all_reduce)

            def finish():
                if reduce is not None:
                    reduce()
                output.copy_(whole.view(self._size, -1)[self._rank].view_as(output))

            return self._run([output], fill, finish)
        name = _name(op, tensor.dtype)
        data = _apart(tensor, output)
        return self._run(
            [output], lambda calls: calls.reduce_scatter(_lent(data), _lent(output), op=name)
        )

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp

        def fill(calls):
            for output, tensor in zip(outputs, inputs):
                name = _name(op, tensor.dtype)
                calls.reduce_scatter(_lent(_apart(tensor, output)), _lent(output), op=name)

        return self._run(outputs, fill)

    def alltoall_base(self, output, tensor, output_sizes, input_sizes, opts=None):
        # Other ranks may give sizes that say the same, so all send and receive in the same way.
        outputs = output.split(list(output_sizes) or [len(output) // self._size] * self._size)
        inputs = tensor.split(list(input_sizes) or [len(tensor) // self._size] * self._size)
        return self.alltoall(outputs, inputs)

    def alltoall(self, outputs, inputs, opts=None):
        fill = lambda calls: self._add_all_to_all(calls, outputs, inputs)
        return self._run(list(outputs), fill)

    def _add_all_to_all(self, calls, outputs, inputs):
        for peer, (output, tensor) in enumerate(zip(outputs, inputs)):
            calls.send(_lent(tensor), peer)
            calls.recv(_lent(output), peer)

    def barrier(self, opts=None):
        return self._run([], lambda calls: calls.barrier())

    def _transfer(self, tensors, add):
        tensor = _only(tensors)
        with self._order:
            thread = threading.current_thread()
            transfers = self._transfers.get(thread)
            if transfers is None:
                # Those of a thread that has ended go along: it waits for nothing any more.
                ended = next((each for each in self._transfers if not each.is_alive()), None)
                transfers = self._transfers.pop(ended, None) or _Transfers(self)
                transfers._thread, self._transfers[thread] = thread, transfers
            add(transfers.calls, _lent(tensor))
        return _Work(self, transfers.started, [tensor], is_transfer=True)

    def send(self, tensors, peer, tag=0):
        return self._transfer(tensors, lambda calls, data: calls.send(data, peer))

    def recv(self, tensors, peer, tag=0):
        return self._transfer(tensors, lambda calls, data: calls.recv(data, peer))

    def recv_anysource(self, tensors, tag=0):
        raise ValueError("the backend invar receives from named ranks only: pass src")

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Waits for all ranks. If some do not come in time, rank 0 raises an error with their
        numbers, and the others one of rank 0."""
        _start_transfers()
        timeout = self._timeout if _seconds(timeout) is None else timeout
        deadline, number = time.monotonic() + timeout.total_seconds(), self._barriers
        self._barriers += 1
        self._store.add(self._barrier_key(number, self._rank), 1)
        text = f"failed to pass monitoredBarrier in {int(timeout.total_seconds() * 1000)} ms"
        if self._rank != 0:
            # Rank 0 may come as late as this rank's time allows, and waits until its own timeout is over.
            until = time.monotonic() + (2 * timeout + _ANSWER_WITHIN).total_seconds()
            if not self._has_come(number, 0, deadline) or not self._has_come(number, "said", until):
                raise RuntimeError(f"Rank 0 {text}")
            outcome = self._store.get(self._barrier_key(number, "outcome"))
            if outcome:
                raise RuntimeError(outcome.decode())
            return
        missing = []
        for rank in range(1, self._size):
            if not self._has_come(number, rank, deadline):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        text = f"Rank {', '.join(map(str, missing))} {text}" if missing else ""
        self._store.set(self._barrier_key(number, "outcome"), text.encode())
        self._store.add(self._barrier_key(number, "said"), 1)
        if missing:
            raise RuntimeError(text)
        # All ranks have come to this barrier, and need the keys of those before no longer.
        for old in range(self._deleted, number):
            for part in *range(self._size), "said", "outcome":
                with contextlib.suppress(Exception):
                    self._store.delete_key(self._barrier_key(old, part))
        self._deleted = number

    def _barrier_key(self, number, part):
        return f"invar/barrier/{self._key}/{number}/{part}"

    def _has_come(self, number, part, deadline):
        """Whether somebody counts a part of a monitored barrier before the deadline."""
        key, pause = self._barrier_key(number, part), 0.001
        # The store of PyTorch 1.13 answers for a wait that has timed out later, in the place of another answer.
        while self._store.add(key, 0) == 0:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, 0.05)
        return True


def _start_settler(works):
    """Starts a thread that completes the future of the next work."""
    thread = threading.Thread(target=_settle_next, args=(works,), name="invar-futures", daemon=True)
    thread.start()


def _settle_next(works):
    work = works.get()
    if work is None:
        return
    pending = work._pending
    if pending is not None:
        with contextlib.suppress(Exception):
            pending[1]().wait()
        pending = None
    with _COMPLETING_LOCK:
        if _program_ends:
            return
        _COMPLETING.add(threading.current_thread())
    work._await()
    # A callback of the future may wait for the future of a later work.
    _start_settler(works)
    work._complete()


def _uncaught():
    """The exception that ends the program, or None. In an interactive interpreter an exception ends nothing."""
    if hasattr(sys, "ps1"):
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


@atexit.register
def _end():
    """Ends all groups. Waits for the threads in PyTorch's C++, which would abort the process if Python ended
    first."""
    global _program_ends
    groups, error = list(_GROUPS), _uncaught()
    if error is not None:
        # The other ranks must not wait for this one, in whichever group.
        for group in groups:
            group._abort(f"its program ended with {type(error).__name__}")
    with _COMPLETING_LOCK:
        _program_ends = True
        threads = list(_COMPLETING)
    end = time.monotonic() + _COMPLETED_WITHIN
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    communicators = [each for group in groups for each in (group._comm, group._pairs)]
    _close_all(communicators, [hub for group in groups for hub in group._hubs.take()])


def _address(store):
    """An address of this host at which the ranks reach a process of it: the address on the way to
    the host of the store."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or socket.gethostname()
    address = _source(host) or "127.0.0.1"
    if ipaddress.ip_address(address).is_loopback and not _names_loopback(host):
        # Some distributions give a host's own name an address on loopback, which other hosts do not reach.
        address = next(filter(None, map(_source, _ELSEWHERE)), address)
    return f"[{address}]:0" if ":" in address else f"{address}:0"


def _source(host):
    """The address of this host on the way to another one, or None."""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            # This sends nothing, and chooses the address of this host.
            probe.connect(found[4])
            return probe.getsockname()[0].partition("%")[0]


def _names_loopback(host):
    """Whether the user has asked for loopback."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _join(store, rank, size, timeout):
    """Brings the ranks together through the store. Returns two communicators, their hubs at rank 0, and a key that
    no other group has."""
    # The largest values that the settings take.
    milliseconds = max(1, min(int(timeout.total_seconds() * 1000), 86_400_000))
    settings = {}
    for name in ["INVAR_CONNECT_TIMEOUT_MS", "INVAR_COLL_TIMEOUT_MS"]:
        if not os.environ.get(name):
            settings[name] = str(milliseconds)
    hubs = []
    if rank == 0:
        address = _address(store)
        hubs = [invar.Hub(size, address, timeout=milliseconds / 1000) for _ in range(2)]
        ids = b"".join(hub.id for hub in hubs)
        # Who can read the store can join, as with the other backends.
        store.set("invar/id", ids)
    else:
        ids = store.get("invar/id")
    half = len(ids) // 2
    first = invar.Communicator.join(ids[:half], rank, size, settings=settings)
    if rank == 0:
        # All ranks have read the key. A later group may have the same store, and must not find it.
        with contextlib.suppress(Exception):
            store.delete_key("invar/id")
    second = invar.Communicator.join(ids[half:], rank, size, settings=settings)
    return (first, second), hubs, hashlib.sha256(ids).hexdigest()[:16]


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    """Stands for ``torch.distributed.monitored_barrier``, which takes groups of gloo alone."""
    group = c10d._get_default_group() if group is None else group
    return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def _register():
    if hasattr(dist.Backend, "INVAR"):
        return
    create = lambda store, rank, size, timeout: ProcessGroupInvar(store, rank, size, timeout)
    try:
        dist.Backend.register_backend("invar", create, devices=["cpu"])
    except TypeError:
        # Before PyTorch 2 a backend had no devices.
        dist.Backend.register_backend("invar", create)


_register()
