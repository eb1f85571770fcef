//! Every order of calls and faults, up to a length, around a recovery: an exhaustive search over the real
//! state machines of both ends.

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::conn::CommSettings;
use invar_core::nic::{Wc, WcStatus};
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;

use crate::meddler::Meddler;

/// The number of steps of a history. A build without optimizations takes about 20 times as long.
const STEPS: usize = if cfg!(debug_assertions) { 5 } else { 8 };
/// The most faults of a history.
const FAULTS_MAX: usize = 3;
const MS: u64 = 1_000_000;
/// Messages under way, and receives for which no message is sent before the end.
const SENT: usize = 2;
const POSTED: usize = 3;
const LEN: usize = 64;

/// A step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An end looks after the connection: 0 for the sender.
    Look(usize),
    /// The queue pair of an end fails.
    Break(usize),
    /// The stream is lost for these ends.
    Lose([bool; 2]),
}

const STEPS_ALL: [Step; 7] = [
    Step::Look(0),
    Step::Look(1),
    Step::Break(0),
    Step::Break(1),
    Step::Lose([true, true]),
    Step::Lose([true, false]),
    Step::Lose([false, true]),
];

struct World {
    nics: [Meddler; 2],
    duo: Duo<Meddler>,
    from: Buffer<Meddler>,
    to: Buffer<Meddler>,
    received: Vec<Request>,
    sent: Vec<Request>,
    now_ns: u64,
}

impl World {
    fn new() -> Self {
        let nics: [NullNic; 2] = NullNic::ports();
        let nics = nics.map(Meddler::new);
        let [a, b] = &nics;
        let settings = CommSettings { fifo_depth: 4, ..CommSettings::default() };
        let duo = duo::connect([a, b], [settings; 2], || {}).expect("a connection");
        let from = Buffer::new(a, &duo.send_pd, 4096);
        let to = Buffer::new(b, &duo.recv_pd, 4096);
        let (received, sent) = (Vec::new(), Vec::new());
        let mut world = World { nics, duo, from, to, received, sent, now_ns: 1000 * MS };
        // No end sees a completion before a fault.
        world.nics.iter().for_each(|nic| nic.plan.holding.set(true));
        (0..POSTED).for_each(|place| world.irecv(place));
        (0..SENT).for_each(|place| assert!(world.isend(place)));
        world.nics.iter().for_each(|nic| nic.plan.holding.set(false));
        world
    }

    fn irecv(&mut self, place: usize) {
        let (addr, rkey) = (self.to.addr(LEN * place), self.to.rkey());
        let buf = RecvBuf { addr, len: LEN as u32, tag: 0, rkey };
        self.received.push(self.duo.recv.irecv(&[buf]).expect("irecv").expect("a request"));
    }

    fn isend(&mut self, place: usize) -> bool {
        self.from.write(LEN * place, &[place as u8 + 1; LEN]);
        let (addr, lkey) = (self.from.addr(LEN * place), self.from.lkey());
        let sent = self.duo.send.isend(&SendBuf { addr, len: LEN as u32, lkey }, 0);
        self.sent.extend(sent.expect("isend"));
        self.sent.len() > place
    }

    fn look(&mut self, end: usize, ns: u64) {
        self.now_ns += ns;
        match end {
            0 => self.duo.send.check_peer(self.now_ns).expect("the sender goes on"),
            _ => self.duo.recv.check_peer(self.now_ns).expect("the receiver goes on"),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Look(end) => self.look(end, MS),
            Step::Break(end) => {
                let wc = Wc { status: WcStatus::RETRY_EXC_ERR, ..Wc::default() };
                self.nics[end].plan.made_up.borrow_mut().push(wc);
            }
            Step::Lose(ends) => self.duo.cable.cut(ends),
        }
    }

    /// Lets both ends go on until every message has arrived, and checks each.
    fn finish(&mut self) {
        // An end that still uses a lost stream learns of that by TCP.
        self.duo.cable.cut([true; 2]);
        for _ in 0..10_000 {
            self.look(0, MS);
            self.look(1, MS);
            let open = [self.duo.send.recovery_stage(), self.duo.recv.recovery_stage()];
            if open == [None; 2] && self.isend(self.sent.len().min(POSTED - 1)) {
                break;
            }
        }
        let World { duo: Duo { send, recv, .. }, sent, received, .. } = self;
        assert_eq!(sent.len(), POSTED, "the last message is not sent");
        for (place, (sent, received)) in sent.iter().zip(received).enumerate() {
            assert_eq!(send.test(sent), Ok(Some(LEN as u32)), "send {place}");
            assert_eq!(recv.test(received), Ok(Some(&[LEN as u32][..])), "receive {place}");
            assert_eq!(self.to.read(LEN * place, LEN), [place as u8 + 1; LEN]);
        }
        assert_eq!([send.outstanding(), recv.outstanding()], [0; 2]);
    }
}

/// Runs the histories that begin with these steps. Returns their number.
fn search(steps: &mut Vec<Step>) -> u64 {
    if steps.len() == STEPS {
        let _named = Named(steps);
        let mut world = World::new();
        steps.iter().for_each(|step| world.take(*step));
        world.finish();
        return 1;
    }
    let is_fault = |step: &Step| !matches!(step, Step::Look(_));
    let faults = steps.iter().filter(|step| is_fault(step)).count();
    let mut histories = 0;
    for step in STEPS_ALL {
        if is_fault(&step) && faults == FAULTS_MAX {
            continue;
        }
        steps.push(step);
        histories += search(steps);
        steps.pop();
    }
    histories
}

/// Names the history under way if the test fails.
struct Named<'a>(&'a [Step]);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the history: {:?}", self.0);
        }
    }
}

#[test]
fn every_order_of_calls_and_faults_ends_with_each_message_once() {
    let histories = search(&mut Vec::new());
    eprintln!("{histories} histories");
    assert!(histories > 5_000);
}
