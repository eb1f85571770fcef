//! A device that reports its end, or that of a queue pair, takes its rail out of a connection. The other rails
//! go on.

use invar_core::comm::{RecvBuf, SendBuf};
use invar_core::conn::CommSettings;
use invar_core::nic::Verb;
use invar_linux::rails::Rails;
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;

use crate::meddler::Meddler;

const MESSAGES: usize = 200;
const BYTES: usize = 64;
/// The message before which the event comes.
const BROKEN: usize = 100;

struct Line {
    ends: [Rails<Meddler>; 2],
    duo: Duo<Rails<Meddler>>,
    from: Buffer<Rails<Meddler>>,
    to: Buffer<Rails<Meddler>>,
    now_ns: u64,
}

impl Line {
    /// Connects two ends of two rails, and waits until both rails carry data.
    fn new() -> Self {
        let [a, b, c, d]: [NullNic; 4] = NullNic::ports();
        let ends = [[a, b], [c, d]]
            .map(|rails| Rails::new(rails.map(Meddler::new).to_vec()).expect("two rails"));
        let duo = duo::connect([&ends[0], &ends[1]], [CommSettings::default(); 2], || {});
        let duo = duo.expect("a connection");
        let from = Buffer::new(&ends[0], &duo.send_pd, MESSAGES * BYTES);
        let to = Buffer::new(&ends[1], &duo.recv_pd, MESSAGES * BYTES);
        let mut line = Line { ends, duo, from, to, now_ns: 1_000_000_000 };
        line.pass(500);
        assert!(line.duo.send.attempts() > 0, "the second rail has joined");
        line
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ns += 1_000_000;
            self.duo.send.check_peer(self.now_ns).expect("a rail is left");
            self.duo.recv.check_peer(self.now_ns).expect("a rail is left");
        }
    }

    /// Sends a message and receives it.
    fn exchange(&mut self, number: usize) {
        let place = number * BYTES;
        self.from.write(place, &[number as u8 + 1; BYTES]);
        let room =
            RecvBuf { addr: self.to.addr(place), len: BYTES as u32, tag: 0, rkey: self.to.rkey() };
        let message =
            SendBuf { addr: self.from.addr(place), len: BYTES as u32, lkey: self.from.lkey() };
        let (mut sent, mut received) = (None, None);
        for _ in 0..2_000 {
            received = received.or_else(|| self.duo.recv.irecv(&[room]).expect("irecv"));
            sent = sent.or_else(|| self.duo.send.isend(&message, 0).expect("isend"));
            self.pass(1);
            if let (Some(sending), Some(receiving)) = (&sent, &received)
                && self.duo.send.test(sending).expect("a test").is_some()
            {
                while self.duo.recv.test(receiving).expect("a test").is_none() {
                    self.pass(1);
                }
                assert_eq!(self.to.read(place, BYTES), [number as u8 + 1; BYTES]);
                return;
            }
        }
        panic!("message {number} did not arrive");
    }
}

#[test]
fn messages_go_on_over_the_other_rail_whichever_rail_a_device_reports() {
    let events = [(Verb::AsyncEvent, "device fatal"), (Verb::QpEvent, "QP fatal")];
    for (end, rail, event, keeps) in (0..2).flat_map(|end| {
        let rails = (0..2).flat_map(move |rail| events.map(|event| (rail, event)));
        rails.flat_map(move |(rail, event)| [false, true].map(|keeps| (end, rail, event, keeps)))
    }) {
        let mut line = Line::new();
        for number in 0..MESSAGES {
            if number == BROKEN {
                let plan = &line.ends[end].nics()[rail].plan;
                plan.keeps_event.set(keeps);
                plan.event.set(Some(event));
            }
            line.exchange(number);
        }
        let attempts = line.duo.send.attempts();
        assert!((2..20).contains(&attempts), "{end} {rail} {event:?}: {attempts} attempts");
    }
}
