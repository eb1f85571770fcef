//! Runs one case through the function table that NCCL loads, with both ends in this thread:
//! `bench_plugin CASE ITERATIONS`. `cargo xtask bench plugin` counts the instructions under callgrind.
//!
//! The program opens `libnccl-net-invar.so` by that name and uses whatever RDMA device exists. Only the
//! cost of the calls into the library counts; the loops here do not.

use std::ffi::{CStr, c_int, c_void};
use std::process::ExitCode;
use std::ptr;

use invar_testkit::bench::{self, check};
use nccl_net_invar::abi::{Code, HANDLE_BYTES, Net, PTR_HOST, V6};

const MESSAGE_BYTES: usize = 8;
const PAGE_BYTES: usize = 4096;
const REGISTRATIONS: usize = 10_000;
const CASES: &str = "msg8-w1, msg8-w32, msg8-q4, group8-w1, idle-test, idle-test-in-turn, idle-isend, \
                     reg-hit-10000, reg-miss-10000";

fn main() -> ExitCode {
    bench::run_case(CASES, |case, n| {
        match case {
            "msg8-w1" => Bench::new(1).messages::<1>(n),
            "msg8-w32" => Bench::new(1).messages::<32>(n),
            "msg8-q4" => Bench::new(4).messages::<1>(n),
            "group8-w1" => Bench::new(1).groups(n),
            "idle-test" => Bench::new(1).idle_test(n),
            "idle-test-in-turn" => Bench::new(1).idle_test_in_turn(n),
            "idle-isend" => Bench::new(1).idle_isend(n),
            "reg-hit-10000" => Bench::new(1).registrations(n, true),
            "reg-miss-10000" => Bench::new(1).registrations(n, false),
            _ => return false,
        }
        true
    })
}

/// The initial value of results.
const NONE: *mut c_void = ptr::null_mut();

struct Bench {
    net: &'static Net<V6>,
    send: *mut c_void,
    recv: *mut c_void,
    /// The sender's memory, registered with the sending end.
    from: Vec<u8>,
    to: Vec<u8>,
    from_mr: *mut c_void,
    to_mr: *mut c_void,
}

impl Bench {
    fn new(queue_pairs: u32) -> Self {
        // SAFETY: No other thread runs yet.
        unsafe { std::env::set_var("NCCL_IB_QPS_PER_CONNECTION", queue_pairs.to_string()) };
        let net = open();
        // SAFETY: The calls follow NCCL's contract: no logger, and room for each result.
        let (send, recv) = unsafe {
            ok((net.init)(None));
            let (mut handle, mut listening) = ([0u8; HANDLE_BYTES], NONE);
            ok((net.listen)(0, handle.as_mut_ptr().cast(), &mut listening));
            let (mut send, mut recv) = (NONE, NONE);
            while send.is_null() || recv.is_null() {
                if send.is_null() {
                    ok((net.connect)(0, handle.as_mut_ptr().cast(), &mut send));
                }
                if recv.is_null() {
                    ok((net.accept)(listening, &mut recv));
                }
            }
            ok((net.close_listen)(listening));
            (send, recv)
        };
        let [from, to] = [(); 2].map(|()| vec![0; PAGE_BYTES]);
        let (from_mr, to_mr) = (register(net, send, &from), register(net, recv, &to));
        Bench { net, send, recv, from, to, from_mr, to_mr }
    }

    /// Posts a receive of `N` messages, tagged by number, the first of them message `first`.
    #[inline(always)]
    fn irecv<const N: usize>(&mut self, first: usize) -> *mut c_void {
        let mut data = [NONE; N];
        for (i, data) in data.iter_mut().enumerate() {
            *data = self.to[(first + i) * MESSAGE_BYTES..].as_mut_ptr().cast();
        }
        let mut sizes = [MESSAGE_BYTES as c_int; N];
        let mut tags: [c_int; N] = std::array::from_fn(|i| i as c_int);
        let mut mrs = [self.to_mr; N];
        let mut request = NONE;
        // SAFETY: Each array has `N` entries, in registered memory, and `request` has room for a
        // request.
        ok(unsafe {
            (self.net.irecv)(
                self.recv,
                N as c_int,
                data.as_mut_ptr(),
                sizes.as_mut_ptr(),
                tags.as_mut_ptr(),
                mrs.as_mut_ptr(),
                &mut request,
            )
        });
        request
    }

    #[inline(always)]
    fn isend(&mut self, message: usize, tag: usize) -> *mut c_void {
        let data = self.from[message * MESSAGE_BYTES..].as_mut_ptr().cast();
        let (size, tag, mut request) = (MESSAGE_BYTES as c_int, tag as c_int, NONE);
        // SAFETY: The memory is registered, and `request` has room for a request.
        ok(unsafe { (self.net.isend)(self.send, data, size, tag, self.from_mr, &mut request) });
        request
    }

    /// Whether a request is done, with the right size.
    #[inline(always)]
    fn test(&mut self, request: *mut c_void) -> bool {
        let (mut done, mut sizes) = (0, [0; 8]);
        // SAFETY: The request is not done, and the call gives room for the flag and the sizes.
        ok(unsafe { (self.net.test)(request, &mut done, sizes.as_mut_ptr()) });
        done == 1 && sizes[0] == MESSAGE_BYTES as c_int
    }

    /// Runs `n` messages, `W` of them pending at a time.
    fn messages<const W: usize>(mut self, n: usize) {
        let (mut received, mut sent) = ([NONE; W], [NONE; W]);
        for _ in 0..n / W {
            for (i, request) in received.iter_mut().enumerate() {
                *request = self.irecv::<1>(i);
                check(!request.is_null());
            }
            for (i, request) in sent.iter_mut().enumerate() {
                *request = self.isend(i, 0);
                check(!request.is_null());
            }
            for i in 0..W {
                check(self.test(sent[i]));
                check(self.test(received[i]));
            }
        }
    }

    /// Runs `n` groups of eight messages.
    fn groups(mut self, n: usize) {
        for _ in 0..n {
            let received = self.irecv::<8>(0);
            check(!received.is_null());
            let mut sent = [NONE; 8];
            for (i, request) in sent.iter_mut().enumerate() {
                *request = self.isend(i, i);
                check(!request.is_null());
            }
            for request in sent {
                check(self.test(request));
            }
            check(self.test(received));
        }
    }

    /// Runs `n` tests of a receive that no send matches.
    fn idle_test(mut self, n: usize) {
        let request = self.irecv::<1>(0);
        // The first slot write asks for a completion, which this test takes before the loop.
        check(!self.test(request));
        for _ in 0..n {
            check(!self.test(request));
        }
    }

    /// Runs `n` tests of receives that no send matches, in turn.
    fn idle_test_in_turn(mut self, n: usize) {
        let requests = [(); 3].map(|()| self.irecv::<1>(0));
        check(!self.test(requests[0]));
        for i in 0..n {
            check(!self.test(requests[i % requests.len()]));
        }
    }

    /// Runs `n` sends for which no receive is posted.
    fn idle_isend(mut self, n: usize) {
        for _ in 0..n {
            check(self.isend(0, 0).is_null());
        }
    }

    /// Registers and deregisters memory `n` times; `already` says whether the memory is registered
    /// already.
    fn registrations(self, n: usize, already: bool) {
        // The registered pages are not adjacent, so each is a region of its own.
        let memory = vec![0; 2 * REGISTRATIONS * PAGE_BYTES];
        let page = |i: usize| &memory[i * PAGE_BYTES..][..PAGE_BYTES];
        for i in 0..REGISTRATIONS {
            register(self.net, self.send, page(2 * i));
        }
        for i in 0..n {
            let one = 2 * (i * 7919 % REGISTRATIONS) + usize::from(!already);
            let mr = register(self.net, self.send, page(one));
            // SAFETY: The memory has just been registered.
            ok(unsafe { (self.net.dereg_mr)(self.send, mr) });
        }
    }
}

fn open() -> &'static Net<V6> {
    const LIBRARY: &CStr = c"libnccl-net-invar.so";
    // SAFETY: The library is our own, and the symbol has this type. The library is never closed.
    let net = unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "{LIBRARY:?} is not found");
        libc::dlsym(library, c"ncclNetPlugin_v6".as_ptr()).cast::<Net<V6>>().as_ref()
    };
    net.expect("version 6 of the interface")
}

#[inline(always)]
fn register(net: &Net<V6>, comm: *mut c_void, memory: &[u8]) -> *mut c_void {
    let (data, size, mut mr) = (memory.as_ptr().cast_mut().cast(), memory.len() as c_int, NONE);
    // SAFETY: The memory exists, and `mr` has room for a registration.
    ok(unsafe { (net.reg_mr)(comm, data, size, PTR_HOST, &mut mr) });
    mr
}

#[inline(always)]
fn ok(code: Code) {
    check(code == Code::SUCCESS);
}
