//! Measures an all-reduce of floats by collNet, and the same all-reduce by messages through the network
//! half of the plugin, in a ring as NCCL's: `bench_collnet RANKS BEGIN END FACTOR WARMUP ITERATIONS`.
//!
//! Each rank is a process. For each size a line has the bytes, and µs of an all-reduce by collNet and by
//! the ring. `cargo xtask bench collnet` runs this program.

#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

use invar::communicator::reduce::Reducer;
use invar::{DataType, RedOp};
use nccl_net_invar::abi::{Code, CollNet, HANDLE_BYTES, Net, PTR_HOST, V12};
use nccl_net_invar::tables::{ncclCollNetPlugin_v12, ncclNetPlugin_v12};

const RANKS_MAX: usize = 8;
const NONE: *mut c_void = ptr::null_mut();
/// `ncclFloat32` and `ncclSum`.
const FLOAT: c_int = 7;
const SUM: c_int = 0;
/// NCCL's ring moves chunks of half of its buffer of 4 MiB, as slices of a quarter (`collectives.h`).
const CHUNK_BYTES: usize = 2 << 20;
const SLICE_BYTES: usize = 1 << 20;
/// Number of slices that fit into NCCL's buffer.
const SLOTS: usize = 4;

static COLLNET: &CollNet<V12> = &ncclCollNetPlugin_v12;
static NET: &Net<V12> = &ncclNetPlugin_v12;

/// The memory that the ranks share.
#[repr(C)]
struct Shared {
    arrived: AtomicI32,
    round: AtomicI32,
    handles: [UnsafeCell<[u8; HANDLE_BYTES]>; RANKS_MAX],
    /// Each rank's time in nanoseconds.
    time_ns: [AtomicU64; RANKS_MAX],
}

// SAFETY: Each rank writes its own handle, between two barriers of all readers.
unsafe impl Sync for Shared {}

fn main() {
    let numbers = std::env::args().skip(1).map(|number| number.parse().expect("a number"));
    let numbers: Vec<usize> = numbers.collect();
    let [nranks, begin, end, factor, warmup, iterations] = numbers[..] else {
        panic!("usage: bench_collnet RANKS BEGIN END FACTOR WARMUP ITERATIONS");
    };
    assert!((1..=RANKS_MAX).contains(&nranks) && begin > 0 && factor > 1, "{numbers:?}");
    let shared = share();
    let mut children = Vec::new();
    for rank in 0..nranks {
        // SAFETY: This process has one thread.
        match unsafe { libc::fork() } {
            0 => {
                let rank = Rank { rank, nranks, shared };
                rank.bind();
                rank.run(begin, end, factor, warmup, iterations);
                return;
            }
            child => children.push(child),
        }
    }
    for child in children {
        let mut status = 0;
        // SAFETY: `status` has room for the status.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(ended == child && status == 0, "a rank ends with status {status:#x}");
    }
}

fn share() -> &'static Shared {
    // SAFETY: The kernel gives zeroed memory, which is a valid value, and which is never unmapped.
    unsafe {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let memory = libc::mmap(NONE, size_of::<Shared>(), access, flags, -1, 0);
        assert!(memory != libc::MAP_FAILED, "no memory to share");
        &*memory.cast::<Shared>()
    }
}

#[derive(Clone, Copy)]
struct Rank {
    rank: usize,
    nranks: usize,
    shared: &'static Shared,
}

impl Rank {
    /// Binds the rank to a processor, as `invar coll` does.
    fn bind(self) {
        // SAFETY: The set is valid, and has the length that the calls are told.
        unsafe {
            let mut allowed: libc::cpu_set_t = mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&allowed), &mut allowed);
            let all = (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &allowed));
            let all: Vec<usize> = all.collect();
            let mut one: libc::cpu_set_t = mem::zeroed();
            libc::CPU_SET(all[self.rank % all.len()], &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &one);
        }
    }

    /// Waits until all ranks have called this function.
    fn barrier(self) {
        let Shared { arrived, round, .. } = self.shared;
        let now = round.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.nranks as i32 {
            arrived.store(0, Ordering::Release);
            round.store(now + 1, Ordering::Release);
        }
        while round.load(Ordering::Acquire) == now {
            std::thread::yield_now();
        }
    }

    /// Tells all ranks this rank's handle, and returns the handles of all.
    fn exchange(self, handle: &[u8; HANDLE_BYTES]) -> [[u8; HANDLE_BYTES]; RANKS_MAX] {
        let handles = &self.shared.handles;
        // SAFETY: Only this rank writes its handle, and no rank reads it before the barrier.
        unsafe { handles[self.rank].get().write(*handle) };
        self.barrier();
        // SAFETY: All ranks have written their handles, and none does again before the barrier below.
        let all = handles.each_ref().map(|handle| unsafe { *handle.get() });
        self.barrier();
        all
    }

    fn run(self, begin: usize, end: usize, factor: usize, warmup: usize, iterations: usize) {
        let (mut net_context, mut context) = (NONE, NONE);
        // SAFETY: The calls follow NCCL's contract: no logger, and room for each result.
        unsafe {
            ok((NET.init)(&mut net_context, 0, ptr::null(), None, None));
            ok((COLLNET.init)(&mut context, 0, None));
        }
        let input: Vec<f32> = (0..end / 4).map(|i| (i % 8 + self.rank) as f32).collect();
        let output = vec![0_f32; end / 4];
        let collnet = Collective::new(self, context, &input, &output);
        let ring = Ring::new(self, net_context, &input, &output);
        let mut bytes = begin;
        while bytes <= end {
            let count = bytes / 4;
            let by_collnet = self.time(warmup, iterations, || collnet.all_reduce(count));
            self.check(&output[..count]);
            let by_ring = self.time(warmup, iterations, || ring.all_reduce(count));
            self.check(&output[..count]);
            if self.rank == 0 {
                println!("{bytes} {by_collnet} {by_ring}");
            }
            bytes *= factor;
        }
        self.barrier();
        collnet.close();
        ring.close();
        // SAFETY: Nothing uses the contexts any more.
        unsafe {
            ok((COLLNET.tail.finalize)(context));
            ok((NET.tail.finalize)(net_context));
        }
    }

    /// Measures a call. Returns its µs, averaged over the iterations and the ranks.
    fn time(self, warmup: usize, iterations: usize, mut call: impl FnMut()) -> f64 {
        (0..warmup).for_each(|_| call());
        self.barrier();
        let start = Instant::now();
        (0..iterations).for_each(|_| call());
        let ns = start.elapsed().as_nanos() as u64 / iterations as u64;
        self.shared.time_ns[self.rank].store(ns, Ordering::Release);
        self.barrier();
        let times = self.shared.time_ns[..self.nranks].iter();
        let all: u64 = times.map(|time| time.load(Ordering::Acquire)).sum();
        all as f64 / self.nranks as f64 / 1e3
    }

    /// Checks a sum of all ranks' inputs.
    fn check(self, output: &[f32]) {
        let n = self.nranks;
        let sum = |i: usize| (n * (i % 8) + n * (n - 1) / 2) as f32;
        assert!(output.iter().enumerate().all(|(i, got)| *got == sum(i)), "a wrong sum");
    }
}

/// An all-reduce by collNet.
struct Collective {
    comm: *mut c_void,
    input: *const f32,
    output: *mut f32,
    input_mr: *mut c_void,
    output_mr: *mut c_void,
}

impl Collective {
    fn new(rank: Rank, context: *mut c_void, input: &[f32], output: &[f32]) -> Self {
        let (mut handle, mut listening, mut comm) = ([0_u8; HANDLE_BYTES], NONE, NONE);
        // SAFETY: The calls follow NCCL's contract: room for each result, and all ranks' handles.
        unsafe {
            ok((COLLNET.listen)(context, 0, handle.as_mut_ptr().cast(), &mut listening));
            let mut all = rank.exchange(&handle);
            let mut handles: Vec<*mut c_void> =
                all[..rank.nranks].iter_mut().map(|handle| handle.as_mut_ptr().cast()).collect();
            let (nranks, number) = (rank.nranks as c_int, rank.rank as c_int);
            ok((COLLNET.connect)(handles.as_mut_ptr(), nranks, number, listening, &mut comm));
            ok((COLLNET.close_listen)(listening));
        }
        let register = |memory: &[f32]| {
            let (data, bytes, mut mr) = (memory.as_ptr().cast_mut(), size_of_val(memory), NONE);
            // SAFETY: The memory exists, and `mr` has room for a registration.
            ok(unsafe { (COLLNET.reg_mr)(comm, data.cast(), bytes, PTR_HOST, &mut mr) });
            mr
        };
        let (input_mr, output_mr) = (register(input), register(output));
        let (input, output) = (input.as_ptr(), output.as_ptr().cast_mut());
        Collective { comm, input, output, input_mr, output_mr }
    }

    fn all_reduce(&self, count: usize) {
        let Collective { comm, input, output, input_mr, output_mr } = *self;
        let (mut request, mut done, mut size) = (NONE, 0, 0);
        // SAFETY: The memory is registered and as long as the count says, and each result has room.
        unsafe {
            let (input, output) = (input.cast_mut().cast(), output.cast());
            ok((COLLNET.iallreduce)(
                comm,
                input,
                output,
                count,
                FLOAT,
                SUM,
                input_mr,
                output_mr,
                &mut request,
            ));
            while done == 0 {
                ok((COLLNET.test)(request, &mut done, &mut size));
            }
        }
    }

    fn close(self) {
        // SAFETY: Nothing uses the comm any more.
        unsafe {
            ok((COLLNET.dereg_mr)(self.comm, self.input_mr));
            ok((COLLNET.dereg_mr)(self.comm, self.output_mr));
            ok((COLLNET.close_coll)(self.comm));
        }
    }
}

/// An all-reduce by messages in a ring.
struct Ring {
    rank: Rank,
    send: *mut c_void,
    recv: *mut c_void,
    input: *const f32,
    output: *mut f32,
    /// Registrations of input, output and slots, with the end that uses them.
    input_mr: *mut c_void,
    output_mr: *mut c_void,
    slots_mr: *mut c_void,
    slots: Vec<f32>,
    sum: Reducer,
}

/// A slice of an all-reduce, and the hop at which it moves.
#[derive(Clone, Copy)]
struct Slice {
    first: usize,
    count: usize,
    hop: usize,
}

impl Ring {
    fn new(rank: Rank, context: *mut c_void, input: &[f32], output: &[f32]) -> Self {
        let (mut handle, mut listening) = ([0_u8; HANDLE_BYTES], NONE);
        let (mut send, mut recv) = (NONE, NONE);
        // SAFETY: The calls follow NCCL's contract: room for each result, and the next rank's handle.
        unsafe {
            ok((NET.listen)(context, 0, handle.as_mut_ptr().cast(), &mut listening));
            let all = rank.exchange(&handle);
            let mut next = all[(rank.rank + 1) % rank.nranks];
            while send.is_null() || recv.is_null() {
                if send.is_null() {
                    let next = next.as_mut_ptr().cast();
                    ok((NET.connect)(context, 0, next, &mut send, NONE));
                }
                if recv.is_null() {
                    ok((NET.accept)(listening, &mut recv, NONE));
                }
            }
            ok((NET.close_listen)(listening));
        }
        let register = |comm: *mut c_void, memory: &[f32]| {
            let (data, bytes, mut mr) = (memory.as_ptr().cast_mut(), size_of_val(memory), NONE);
            // SAFETY: The memory exists, and `mr` has room for a registration.
            ok(unsafe { (NET.reg_mr)(comm, data.cast(), bytes, PTR_HOST, &mut mr) });
            mr
        };
        let slots = vec![0.0; SLOTS * SLICE_BYTES / 4];
        Ring {
            input_mr: register(send, input),
            output_mr: register(send, output),
            slots_mr: register(recv, &slots),
            rank,
            send,
            recv,
            input: input.as_ptr(),
            output: output.as_ptr().cast_mut(),
            slots,
            sum: Reducer::new(DataType::F32, RedOp::Sum, rank.nranks as u32),
        }
    }

    /// Returns the slices that a rank sends or receives, and the number of slices of a chunk. `behind` is
    /// the rank whose chunk the rank begins with, counted backwards around the ring.
    fn slices(&self, count: usize, behind: usize) -> (Vec<Slice>, usize) {
        let (n, rank) = (self.rank.nranks, self.rank.rank);
        let chunk = count.div_ceil(n).min(CHUNK_BYTES / 4);
        let slice = chunk.clamp(1, SLICE_BYTES / 4);
        let per_chunk = chunk.div_ceil(slice).max(1);
        let mut slices = Vec::new();
        for start in (0..count).step_by((n * chunk).max(1)) {
            for hop in 0..2 * (n - 1) {
                let block = start + (rank + 2 * n * n - behind - hop) % n * chunk;
                for i in 0..per_chunk {
                    let first = (block + i * slice).min(count);
                    let end = (block + ((i + 1) * slice).min(chunk)).min(count);
                    slices.push(Slice { first, count: end.saturating_sub(first), hop });
                }
            }
        }
        (slices, per_chunk)
    }

    fn all_reduce(&self, count: usize) {
        let ((sends, per_chunk), (recvs, _)) = (self.slices(count, 0), self.slices(count, 1));
        let reducing = self.rank.nranks - 1;
        let (mut sent, mut sending) = (0, Vec::new());
        let (mut posted, mut received, mut receiving) = (0, 0, Vec::new());
        while received < recvs.len() || !sending.is_empty() || sent < sends.len() {
            while posted < recvs.len() && posted < received + SLOTS {
                receiving.push(self.irecv(posted % SLOTS, recvs[posted]));
                posted += 1;
            }
            if let Some(request) = receiving.first()
                && is_done(*request)
            {
                receiving.remove(0);
                self.take(received % SLOTS, recvs[received], reducing);
                received += 1;
            }
            while sent < sends.len() && sending.len() < SLOTS {
                // A slice goes on when it has come over the hop before.
                let slice = sends[sent];
                if slice.hop > 0 && received <= sent - per_chunk {
                    break;
                }
                let Some(request) = self.isend(slice) else { break };
                sending.push(request);
                sent += 1;
            }
            sending.retain(|request| !is_done(*request));
        }
    }

    fn irecv(&self, slot: usize, slice: Slice) -> *mut c_void {
        let mut data = self.slot(slot).cast_mut().cast();
        let (mut size, mut tag, mut mr) = (slice.count * 4, 0, self.slots_mr);
        let (mut step, mut request) = (NONE, NONE);
        // SAFETY: Each array has an entry, in registered memory, and `request` has room for a request.
        ok(unsafe {
            (NET.irecv)(
                self.recv,
                1,
                &mut data,
                &mut size,
                &mut tag,
                &mut mr,
                &mut step,
                &mut request,
            )
        });
        assert!(!request.is_null(), "a receive finds no request");
        request
    }

    fn isend(&self, slice: Slice) -> Option<*mut c_void> {
        let (from, mr) = match slice.hop {
            0 => (self.input, self.input_mr),
            _ => (self.output.cast_const(), self.output_mr),
        };
        let (data, mut request) = (from.wrapping_add(slice.first).cast_mut().cast(), NONE);
        // SAFETY: The memory is registered, and `request` has room for a request.
        ok(unsafe { (NET.isend)(self.send, data, slice.count * 4, 0, mr, NONE, &mut request) });
        (!request.is_null()).then_some(request)
    }

    /// Uses a received slice: adds the input to it, or takes it as it is.
    fn take(&self, slot: usize, slice: Slice, reducing: usize) {
        let slot = self.slot(slot).cast::<u8>();
        let Slice { first, count, hop } = slice;
        let (input, output) = (self.input.wrapping_add(first), self.output.wrapping_add(first));
        // SAFETY: All memory has the slice's elements, and nothing else uses it.
        unsafe {
            match hop < reducing {
                true => {
                    self.sum.run(&[slot, input.cast()], Some(1), &[output.cast()], count, false)
                }
                false => ptr::copy_nonoverlapping(slot, output.cast(), count * 4),
            }
        }
    }

    fn slot(&self, slot: usize) -> *const f32 {
        self.slots[slot * SLICE_BYTES / 4..].as_ptr()
    }

    fn close(self) {
        // SAFETY: Nothing uses the comms any more.
        unsafe {
            ok((NET.dereg_mr)(self.send, self.input_mr));
            ok((NET.dereg_mr)(self.send, self.output_mr));
            ok((NET.dereg_mr)(self.recv, self.slots_mr));
            ok((NET.close_send)(self.send));
            ok((NET.close_recv)(self.recv));
        }
    }
}

/// Whether a request of the network is done.
fn is_done(request: *mut c_void) -> bool {
    let (mut done, mut sizes) = (0, [0; 8]);
    // SAFETY: The request is not done yet, and the call gives room for the flag and the sizes.
    ok(unsafe { (NET.test)(request, &mut done, sizes.as_mut_ptr()) });
    done == 1
}

#[inline(always)]
fn ok(code: Code) {
    assert!(code == Code::SUCCESS, "{code:?}");
}
