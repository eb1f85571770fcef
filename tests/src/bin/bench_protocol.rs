//! Runs one case of the protocol over the null NIC, to be counted under callgrind by
//! `cargo xtask bench protocol`: `bench_protocol CASE ITERATIONS`.
//!
//! Instructions an operation are the difference of two runs; so set-up and warm-up do not count.

use std::process::ExitCode;

use invar_core::comm::{RecvBuf, RecvComm, Request, SendBuf, SendComm};
use invar_core::conn::Settings;
use invar_core::error::Error;
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;
use invar_testkit::pipe::Pipe;

const MESSAGE_BYTES: usize = 8;
const CASES: &str = "msg8-w1, msg8-w32, msg8-q4, group8-w1, idle-test, idle-isend";

struct Bench {
    duo: Duo<NullNic>,
    from: Buffer<NullNic>,
    to: Buffer<NullNic>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [case, iterations] = &args[..] else {
        eprintln!("usage: bench_protocol CASE ITERATIONS, CASE one of {CASES}");
        return ExitCode::from(2);
    };
    let Ok(n) = iterations.parse::<usize>() else {
        eprintln!("bench_protocol: {iterations:?} is not a number of iterations");
        return ExitCode::from(2);
    };
    match case.as_str() {
        "msg8-w1" => Bench::new(1).messages::<1>(n),
        "msg8-w32" => Bench::new(1).messages::<32>(n),
        "msg8-q4" => Bench::new(4).messages::<1>(n),
        "group8-w1" => Bench::new(1).groups(n),
        "idle-test" => Bench::new(1).idle_test(n),
        "idle-isend" => Bench::new(1).idle_isend(n),
        _ => {
            eprintln!("bench_protocol: no case {case:?}; there are {CASES}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

impl Bench {
    fn new(qps: u16) -> Self {
        let [a, b] = NullNic::ports();
        let settings = Settings { qps, ..Settings::default() };
        let duo = duo::connect([&a, &b], [settings; 2], || {}).expect("a connection");
        let from = Buffer::new(&a, &duo.send_pd, 4096);
        let to = Buffer::new(&b, &duo.recv_pd, 4096);
        Bench { duo, from, to }
    }

    fn recv_buf(&self, i: usize) -> RecvBuf {
        let addr = self.to.addr(i * MESSAGE_BYTES);
        RecvBuf { addr, len: MESSAGE_BYTES as u32, tag: i as u32, rkey: self.to.rkey() }
    }

    fn send_buf(&self, i: usize) -> SendBuf {
        let addr = self.from.addr(i * MESSAGE_BYTES);
        SendBuf { addr, len: MESSAGE_BYTES as u32, lkey: self.from.lkey() }
    }

    /// `n` messages, `W` under way at a time.
    fn messages<const W: usize>(mut self, n: usize) {
        let recv_bufs: [_; W] = std::array::from_fn(|i| [self.recv_buf(i)]);
        let send_bufs: [_; W] = std::array::from_fn(|i| self.send_buf(i));
        let Duo { send, recv, .. } = &mut self.duo;
        for _ in 0..n / W {
            let received = recv_bufs.each_ref().map(|bufs| call::irecv(recv, bufs).expect("irecv"));
            let sent: [_; W] =
                std::array::from_fn(|i| call::isend(send, &send_bufs[i], i as u32).expect("isend"));
            for (received, sent) in received.iter().zip(&sent) {
                assert!(call::test_send(send, sent.as_ref().expect("sent")));
                assert!(call::test_recv(recv, received.as_ref().expect("posted"), &[8]));
            }
        }
    }

    /// `n` groups of eight messages.
    fn groups(mut self, n: usize) {
        let recv_bufs: [_; 8] = std::array::from_fn(|i| self.recv_buf(i));
        let send_bufs: [_; 8] = std::array::from_fn(|i| self.send_buf(i));
        let Duo { send, recv, .. } = &mut self.duo;
        for _ in 0..n {
            let received = call::irecv(recv, &recv_bufs).expect("irecv").expect("a request");
            let sent: [_; 8] =
                std::array::from_fn(|i| call::isend(send, &send_bufs[i], i as u32).expect("isend"));
            for sent in &sent {
                assert!(call::test_send(send, sent.as_ref().expect("sent")));
            }
            assert!(call::test_recv(recv, &received, &[8; 8]));
        }
    }

    /// `n` tests of a receive that nothing is sent to.
    fn idle_test(mut self, n: usize) {
        let bufs = [self.recv_buf(0)];
        let recv = &mut self.duo.recv;
        let request = call::irecv(recv, &bufs).expect("irecv").expect("a request");
        // The first slot write asks for a completion: take it before.
        assert!(!call::test_recv(recv, &request, &[8]));
        for _ in 0..n {
            assert!(!call::test_recv(recv, &request, &[8]));
        }
    }

    /// `n` sends for which no receive is posted.
    fn idle_isend(mut self, n: usize) {
        let buf = self.send_buf(0);
        for _ in 0..n {
            assert!(call::isend(&mut self.duo.send, &buf, 0).expect("isend").is_none());
        }
    }
}

/// The calls that count, each a function of its own as it is for a plugin's caller. What drives
/// them does not count.
mod call {
    use super::*;

    type Posted = Result<Option<Request>, Error>;

    #[inline(never)]
    pub(super) fn irecv(comm: &mut RecvComm<NullNic, Pipe>, bufs: &[RecvBuf]) -> Posted {
        comm.irecv(bufs)
    }

    #[inline(never)]
    pub(super) fn isend(comm: &mut SendComm<NullNic, Pipe>, buf: &SendBuf, tag: u32) -> Posted {
        comm.isend(buf, tag)
    }

    #[inline(never)]
    pub(super) fn test_send(comm: &mut SendComm<NullNic, Pipe>, request: &Request) -> bool {
        matches!(comm.test(request), Ok(Some(_)))
    }

    #[inline(never)]
    pub(super) fn test_recv(
        comm: &mut RecvComm<NullNic, Pipe>,
        request: &Request,
        expected: &[u32],
    ) -> bool {
        matches!(comm.test(request), Ok(Some(sizes)) if sizes.len() == expected.len())
    }
}
