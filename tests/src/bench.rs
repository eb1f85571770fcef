//! The protocol's benchmark cases over a NIC that completes at once. `cargo xtask bench` counts their
//! instructions under callgrind: `PROGRAM CASE ITERATIONS`.
//!
//! The instructions of an operation are the difference between two runs, so set-up and warm-up do not
//! count. Each case runs in two variants. In one, the compiler inlines all calls into the loop, as in a
//! Rust program. In the other (`-calls`), the calls go through functions, as in a C program.

use std::process::ExitCode;

use invar_core::comm::{RecvBuf, RecvComm, Request, SendBuf, SendComm};
use invar_core::conn::CommSettings;
use invar_core::error::Error;
use invar_core::nic::Nic;
use invar_linux::rails::Rails;

use crate::duo::{self, Buffer, Duo};
use crate::pipe::Pipe;

use call::{Called, Calls, Inlined};

const MESSAGE_BYTES: usize = 8;
const CASES: &str = "msg8-w1, msg8-w32, msg8-q2, msg8-q4, msg8-rails2, msg8-standby, group8-w1, idle-test, \
                     idle-isend; each -calls too";

/// Runs a benchmark program on the two ports that `ports` opens.
pub fn main<N: Nic + Clone>(ports: impl FnOnce() -> [N; 2]) -> ExitCode {
    run_case(CASES, |case, n| match case.strip_suffix("-calls") {
        Some(case) => run::<N, Called>(ports(), case, n),
        None => run::<N, Inlined>(ports(), case, n),
    })
}

/// Runs the case that the program's arguments name, for the given number of iterations. `run` returns
/// false if it does not know the case.
pub fn run_case(cases: &str, run: impl FnOnce(&str, usize) -> bool) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [case, iterations] = &args[..] else {
        eprintln!("two arguments: a case ({cases}) and a number of iterations");
        return ExitCode::from(2);
    };
    let Ok(n) = iterations.parse::<usize>() else {
        eprintln!("{iterations:?} is not a number of iterations");
        return ExitCode::from(2);
    };
    if !run(case, n) {
        eprintln!("no case {case:?}; there are {cases}");
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}

/// Runs a case. Returns false if there is no such case.
fn run<N: Nic + Clone, C: Calls>(ports: [N; 2], case: &str, n: usize) -> bool {
    match case {
        "msg8-w1" => Bench::new(ports, 1).messages::<C, 1>(n),
        "msg8-w32" => Bench::new(ports, 1).messages::<C, 32>(n),
        "msg8-q2" => Bench::new(ports, 2).messages::<C, 1>(n),
        "msg8-q4" => Bench::new(ports, 4).messages::<C, 1>(n),
        "msg8-rails2" => Bench::over_two_rails(ports, 2).messages::<C, 1>(n),
        "msg8-standby" => Bench::over_two_rails(ports, 1).messages::<C, 1>(n),
        "group8-w1" => Bench::new(ports, 1).groups::<C>(n),
        "idle-test" => Bench::new(ports, 1).idle_test::<C>(n),
        "idle-isend" => Bench::new(ports, 1).idle_isend::<C>(n),
        _ => return false,
    }
    true
}

/// A request before its call has filled it in.
const NONE: Request = Request::from_raw(0);

struct Bench<N: Nic> {
    duo: Duo<N>,
    from: Buffer<N>,
    to: Buffer<N>,
}

impl<N: Nic + Clone> Bench<Rails<N>> {
    /// A connection of which each end has two rails, both on its one port. Rails after the first `active` ones
    /// are standby.
    fn over_two_rails(ports: [N; 2], active: usize) -> Self {
        let two_rails = |nic: N| Rails::new(vec![nic.clone(), nic], active).expect("two rails");
        let mut bench = Bench::new(ports.map(two_rails), 1);
        let Duo { send, recv, .. } = &mut bench.duo;
        // The second rail joins after a while.
        for now_ns in (1..=500).map(|ms| ms * 1_000_000) {
            send.check_peer(now_ns).expect("no error");
            recv.check_peer(now_ns).expect("no error");
        }
        assert!(send.attempts() > 0, "the second rail has joined");
        assert_eq!(send.qpns().count(), active, "the rails that carry data");
        bench
    }
}

impl<N: Nic + Clone> Bench<N> {
    fn new([a, b]: [N; 2], qps: u16) -> Self {
        let settings = CommSettings { qps, ..CommSettings::default() };
        let duo = duo::connect([&a, &b], [settings; 2], || {}).expect("a connection");
        let from = Buffer::new(&a, &duo.send_pd, 4096);
        let to = Buffer::new(&b, &duo.recv_pd, 4096);
        Bench { duo, from, to }
    }

    fn recv_buf(&self, i: usize, tag: u32) -> RecvBuf {
        self.to.room(i * MESSAGE_BYTES, MESSAGE_BYTES as u32, tag)
    }

    fn send_buf(&self, i: usize) -> SendBuf {
        self.from.message(i * MESSAGE_BYTES, MESSAGE_BYTES as u32)
    }

    /// Passes `n` messages, of which `W` are in flight at a time.
    #[inline(never)]
    fn messages<C: Calls, const W: usize>(mut self, n: usize) {
        let recv_bufs: [_; W] = std::array::from_fn(|i| [self.recv_buf(i, 0)]);
        let send_bufs: [_; W] = std::array::from_fn(|i| self.send_buf(i));
        let Duo { send, recv, .. } = &mut self.duo;
        let (mut received, mut sent) = ([NONE; W], [NONE; W]);
        for _ in 0..n / W {
            for (buf, request) in recv_bufs.iter().zip(&mut received) {
                check(C::irecv(recv, buf, request));
            }
            for (buf, request) in send_bufs.iter().zip(&mut sent) {
                check(C::isend(send, buf, 0, request));
            }
            for (received, sent) in received.iter().zip(&sent) {
                check(C::test_send(send, sent, MESSAGE_BYTES as u32));
                check(C::test_recv(recv, received, MESSAGE_BYTES as u32));
            }
        }
    }

    /// Passes `n` groups of eight messages.
    #[inline(never)]
    fn groups<C: Calls>(mut self, n: usize) {
        let recv_bufs: [_; 8] = std::array::from_fn(|i| self.recv_buf(i, i as u32));
        let send_bufs: [_; 8] = std::array::from_fn(|i| self.send_buf(i));
        let Duo { send, recv, .. } = &mut self.duo;
        let (mut received, mut sent) = (NONE, [NONE; 8]);
        for _ in 0..n {
            check(C::irecv(recv, &recv_bufs, &mut received));
            for i in 0..8 {
                check(C::isend(send, &send_bufs[i], i as u32, &mut sent[i]));
            }
            for request in &sent {
                check(C::test_send(send, request, MESSAGE_BYTES as u32));
            }
            check(C::test_recv(recv, &received, MESSAGE_BYTES as u32));
        }
    }

    /// Makes `n` tests of a receive to which nothing is sent.
    #[inline(never)]
    fn idle_test<C: Calls>(mut self, n: usize) {
        let bufs = [self.recv_buf(0, 0)];
        let recv = &mut self.duo.recv;
        let mut request = NONE;
        check(C::irecv(recv, &bufs, &mut request));
        // The first slot write asks for a completion. Take that completion before the loop.
        check(!C::test_recv(recv, &request, MESSAGE_BYTES as u32));
        for _ in 0..n {
            check(!C::test_recv(recv, &request, MESSAGE_BYTES as u32));
        }
    }

    /// Makes `n` sends for which no receive is posted.
    #[inline(never)]
    fn idle_isend<C: Calls>(mut self, n: usize) {
        let buf = self.send_buf(0);
        let mut request = NONE;
        for _ in 0..n {
            check(!C::isend(&mut self.duo.send, &buf, 0, &mut request));
        }
    }
}

/// Asserts a condition. All failures share one function, because the loops should contain as little
/// code as possible.
#[inline(always)]
pub fn check(is_so: bool) {
    if !is_so {
        unexpected();
    }
}

#[cold]
#[inline(never)]
fn unexpected() -> ! {
    panic!("a call did not do what it must");
}

/// The calls that are counted.
mod call {
    use super::*;

    type Send<N> = SendComm<N, Pipe>;
    type Recv<N> = RecvComm<N, Pipe>;

    /// The calls of the plugin interface that NCCL loads. Each returns whether it did its work. A test
    /// also returns false if the size differs from the expected one.
    pub(super) trait Calls {
        #[inline(always)]
        fn irecv<N: Nic>(recv: &mut Recv<N>, bufs: &[RecvBuf], request: &mut Request) -> bool {
            match recv.irecv(bufs) {
                Ok(Some(posted)) => {
                    *request = posted;
                    true
                }
                Ok(None) => false,
                Err(error) => failed(&error),
            }
        }

        #[inline(always)]
        fn isend<N: Nic>(
            send: &mut Send<N>,
            buf: &SendBuf,
            tag: u32,
            request: &mut Request,
        ) -> bool {
            match send.isend(buf, tag) {
                Ok(Some(sent)) => {
                    *request = sent;
                    true
                }
                Ok(None) => false,
                Err(error) => failed(&error),
            }
        }

        #[inline(always)]
        fn test_send<N: Nic>(send: &mut Send<N>, request: &Request, expected: u32) -> bool {
            match send.test(request) {
                Ok(Some(size)) => size == expected,
                Ok(None) => false,
                Err(error) => failed(&error),
            }
        }

        #[inline(always)]
        fn test_recv<N: Nic>(recv: &mut Recv<N>, request: &Request, expected: u32) -> bool {
            match recv.test(request) {
                Ok(Some(sizes)) => sizes.first() == Some(&expected),
                Ok(None) => false,
                Err(error) => failed(&error),
            }
        }
    }

    /// Inlines each call into the loop around it.
    pub(super) struct Inlined;

    impl Calls for Inlined {}

    /// Makes each call a function of its own.
    pub(super) struct Called;

    impl Calls for Called {
        #[inline(never)]
        fn irecv<N: Nic>(recv: &mut Recv<N>, bufs: &[RecvBuf], request: &mut Request) -> bool {
            Inlined::irecv(recv, bufs, request)
        }

        #[inline(never)]
        fn isend<N: Nic>(
            send: &mut Send<N>,
            buf: &SendBuf,
            tag: u32,
            request: &mut Request,
        ) -> bool {
            Inlined::isend(send, buf, tag, request)
        }

        #[inline(never)]
        fn test_send<N: Nic>(send: &mut Send<N>, request: &Request, expected: u32) -> bool {
            Inlined::test_send(send, request, expected)
        }

        #[inline(never)]
        fn test_recv<N: Nic>(recv: &mut Recv<N>, request: &Request, expected: u32) -> bool {
            Inlined::test_recv(recv, request, expected)
        }
    }

    #[cold]
    #[inline(never)]
    fn failed(error: &Error) -> ! {
        panic!("{error}");
    }
}
