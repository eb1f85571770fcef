//! Runs one case of the protocol over the null NIC, to be counted under callgrind by
//! `cargo xtask bench protocol`: `bench_protocol CASE ITERATIONS`.
//!
//! Instructions an operation are the difference of two runs; so set-up and warm-up do not count.

use std::process::ExitCode;

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::conn::Settings;
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;

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
        let mut window: [(Option<Request>, Option<Request>); W] =
            std::array::from_fn(|_| (None, None));
        for _ in 0..n / W {
            for (i, under_way) in window.iter_mut().enumerate() {
                under_way.0 = recv.irecv(&recv_bufs[i]).expect("irecv");
            }
            for (i, under_way) in window.iter_mut().enumerate() {
                under_way.1 = send.isend(&send_bufs[i], i as u32).expect("isend");
            }
            for (received, sent) in &window {
                let (Some(received), Some(sent)) = (received, sent) else { panic!("not started") };
                assert!(send.test(sent).expect("test").is_some());
                let sizes = recv.test(received).expect("test").expect("received");
                assert!(sizes == [MESSAGE_BYTES as u32]);
            }
        }
    }

    /// `n` groups of eight messages.
    fn groups(mut self, n: usize) {
        let recv_bufs: [_; 8] = std::array::from_fn(|i| self.recv_buf(i));
        let send_bufs: [_; 8] = std::array::from_fn(|i| self.send_buf(i));
        let Duo { send, recv, .. } = &mut self.duo;
        for _ in 0..n {
            let received = recv.irecv(&recv_bufs).expect("irecv").expect("a request");
            let mut sent: [Option<Request>; 8] = Default::default();
            for (i, under_way) in sent.iter_mut().enumerate() {
                *under_way = send.isend(&send_bufs[i], i as u32).expect("isend");
            }
            for sent in sent.iter().flatten() {
                assert!(send.test(sent).expect("test").is_some());
            }
            let sizes = recv.test(&received).expect("test").expect("received");
            assert!(sizes == [MESSAGE_BYTES as u32; 8]);
        }
    }

    /// `n` tests of a receive that nothing is sent to.
    fn idle_test(mut self, n: usize) {
        let bufs = [self.recv_buf(0)];
        let recv = &mut self.duo.recv;
        let request = recv.irecv(&bufs).expect("irecv").expect("a request");
        // The first slot write asks for a completion: take it before.
        assert!(recv.test(&request).expect("test").is_none());
        for _ in 0..n {
            assert!(recv.test(&request).expect("test").is_none());
        }
    }

    /// `n` sends for which no receive is posted.
    fn idle_isend(mut self, n: usize) {
        let buf = self.send_buf(0);
        for _ in 0..n {
            assert!(self.duo.send.isend(&buf, 0).expect("isend").is_none());
        }
    }
}
