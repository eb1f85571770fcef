//! Every order of calls and faults, up to a length, around a recovery: an exhaustive search over the real
//! state machines of both ends.

use invar_core::comm::Request;
use invar_core::conn::CommSettings;
use invar_core::nic::WcStatus;
use invar_testkit::duo::Duo;

use crate::line::{Line, MESSAGE_BYTES};

/// The number of steps of a history. A build without optimizations takes about 20 times as long.
const STEPS: usize = if cfg!(debug_assertions) { 5 } else { 8 };
/// The most faults of a history.
const FAULTS_MAX: usize = 3;
/// Messages under way, and receives for which no message is sent before the end.
const SENT: usize = 2;
const POSTED: usize = 3;

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
    line: Line,
    received: Vec<Request>,
    sent: Vec<Request>,
}

impl World {
    fn new() -> Self {
        let settings = CommSettings { fifo_depth: 4, ..CommSettings::default() };
        let mut line = Line::new([settings; 2]);
        // No end sees a completion before a fault.
        line.hold(true);
        let received = (0..POSTED).map(|place| line.irecv(place)).collect();
        let sent = (0..SENT).map(|place| line.isend(place)).collect();
        line.hold(false);
        World { line, received, sent }
    }

    fn take(&mut self, step: Step) {
        let line = &mut self.line;
        match step {
            Step::Look(end) => {
                line.now_ns += 1_000_000;
                match end {
                    0 => line.duo.send.check_peer(line.now_ns).expect("the sender goes on"),
                    _ => line.duo.recv.check_peer(line.now_ns).expect("the receiver goes on"),
                }
            }
            Step::Break(end) => line.nics[end].complete_with(WcStatus::RETRY_EXC_ERR),
            Step::Lose(ends) => line.duo.cable.cut(ends),
        }
    }

    /// Lets both ends go on until every message has arrived, and checks each.
    fn finish(&mut self) {
        // An end that still uses a lost stream learns of that by TCP.
        self.take(Step::Lose([true; 2]));
        for _ in 0..10_000 {
            self.take(Step::Look(0));
            self.take(Step::Look(1));
            if self.line.stages() == [None; 2]
                && let Some(sent) = self.line.try_isend(SENT)
            {
                self.sent.push(sent);
                break;
            }
        }
        let World { line: Line { duo: Duo { send, recv, .. }, to, .. }, sent, received } = self;
        assert_eq!(sent.len(), POSTED, "the last message is not sent");
        let len = MESSAGE_BYTES as u32;
        for (place, (sent, received)) in sent.iter().zip(received).enumerate() {
            assert_eq!(send.test(sent), Ok(Some(len)), "send {place}");
            assert_eq!(recv.test(received), Ok(Some(&[len][..])), "receive {place}");
            let bytes = to.read(MESSAGE_BYTES * place, MESSAGE_BYTES);
            assert_eq!(bytes, [place as u8 + 1; MESSAGE_BYTES]);
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
