//! A device that reports its end, or that of a queue pair, takes its rail out of a connection. The other rails
//! go on. Standby rails carry data only while no other rail works.

use std::thread;
use std::time::Duration;

use invar_core::comm::{RecvBuf, SendBuf};
use invar_core::conn::CommSettings;
use invar_core::error::Error;
use invar_core::nic::{Gid, Nic, PortAttr, SendWr, Verb};
use invar_linux::either::Either;
use invar_linux::memory::HostMemory;
use invar_linux::rails::Rails;
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::duo::{self, Buffer, Duo};
use invar_testkit::null::NullNic;
use invar_testkit::warnings;

use crate::meddler::Meddler;

const MESSAGES: usize = 200;
const BYTES: usize = 64;
/// The message before which the event comes.
const BROKEN: usize = 100;

struct Line<N: Nic = Meddler> {
    ends: [Rails<N>; 2],
    duo: Duo<Rails<N>>,
    from: Buffer<Rails<N>>,
    to: Buffer<Rails<N>>,
    now_ns: u64,
    /// The time that really passes in a millisecond.
    nap: Duration,
}

impl Line {
    /// Connects two ends of two rails, of which so many are no standby at each end. Waits until both rails have
    /// queue pairs.
    fn new(active: [usize; 2]) -> Self {
        Line::with([CommSettings::default(); 2], active)
    }

    fn with(settings: [CommSettings; 2], active: [usize; 2]) -> Self {
        let [a, b, c, d]: [NullNic; 4] = NullNic::ports();
        let rails = [[a, b], [c, d]].map(|rails| rails.map(Meddler::new));
        Line::over(rails, settings, active, Duration::ZERO)
    }
}

impl<N: Nic<Memory = HostMemory> + Clone> Line<N> {
    fn over(
        [here, there]: [[N; 2]; 2],
        settings: [CommSettings; 2],
        active: [usize; 2],
        nap: Duration,
    ) -> Self {
        let ends = [(here, active[0]), (there, active[1])]
            .map(|(rails, active)| Rails::new(rails.to_vec(), active).expect("two rails"));
        let duo = duo::connect([&ends[0], &ends[1]], settings, || {});
        let duo = duo.expect("a connection");
        let from = Buffer::new(&ends[0], &duo.send_pd, MESSAGES * BYTES);
        let to = Buffer::new(&ends[1], &duo.recv_pd, MESSAGES * BYTES);
        let mut line = Line { ends, duo, from, to, now_ns: 1_000_000_000, nap };
        line.pass(500);
        assert!(line.duo.send.attempts() > 0, "the second rail has joined");
        line
    }

    /// The rails that carry data.
    fn rails(&self) -> Vec<u32> {
        let mut rails: Vec<u32> = self.duo.send.qpns().map(|qpn| qpn >> 24).collect();
        rails.dedup();
        rails
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now_ns += 1_000_000;
            if !self.nap.is_zero() {
                thread::sleep(self.nap);
            }
            self.duo.send.check_peer(self.now_ns).expect("a rail is left");
            self.duo.recv.check_peer(self.now_ns).expect("a rail is left");
        }
    }

    /// Waits until these rails carry data.
    fn until(&mut self, rails: &[u32]) {
        let mut tries = 0..20_000;
        while self.rails() != rails {
            tries.next().unwrap_or_else(|| panic!("{:?} carry data, not {rails:?}", self.rails()));
            self.pass(1);
        }
    }

    /// The receive and the send of a message.
    fn message(&self, number: usize) -> (RecvBuf, SendBuf) {
        let (place, len) = (number * BYTES, BYTES as u32);
        (self.to.room(place, len, 0), self.from.message(place, len))
    }

    /// Sends a message and receives it.
    fn exchange(&mut self, number: usize) {
        let place = number * BYTES;
        self.from.write(place, &[number as u8 + 1; BYTES]);
        let (room, message) = self.message(number);
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

/// Makes a device misbehave.
type Change = fn(&Meddler);

/// Breaks the first of two rails, or mends it.
type Break = fn(&Rails<Meddler>, bool);

#[test]
fn a_standby_rail_carries_data_only_while_the_other_rail_does_not_work() {
    let port_down: Break = |nic, is_down| nic.nics()[0].set_down(is_down);
    let qps_fail: Break = |nic, fail| {
        nic.nics()[0].plan.keeps_event.set(true);
        nic.nics()[0].plan.event.set(fail.then_some((Verb::QpEvent, "QP fatal")));
    };
    // If one end wants a standby rail, it is one at both ends.
    for (active, end, set_broken) in [[1, 1], [1, 2], [2, 1]].into_iter().flat_map(|active| {
        let breaks = |end| [port_down, qps_fail].map(|set_broken| (active, end, set_broken));
        (0..2).flat_map(breaks).collect::<Vec<_>>()
    }) {
        let mut line = Line::new(active);
        let mut number = 0;
        let mut exchange = |line: &mut Line| {
            for _ in 0..10 {
                line.exchange(number);
                number += 1;
            }
        };
        for _ in 0..3 {
            exchange(&mut line);
            assert_eq!(line.rails(), [0], "{active:?} {end}");
            let standby = line.ends.each_ref().map(|nic| nic.nics()[1].plan.posted.take());
            let carries = |(_, wr): &(u32, SendWr)| wr.sge.length > 0;
            assert!(!standby.iter().flatten().any(carries), "{active:?} {end}");
            set_broken(&line.ends[end], true);
            exchange(&mut line);
            // These NICs report nothing about a port, and are asked every 250 ms.
            line.pass(300);
            assert_eq!(line.rails(), [1], "{active:?} {end}");
            exchange(&mut line);
            set_broken(&line.ends[end], false);
            line.pass(9_000);
            line.ends.iter().for_each(|nic| drop(nic.nics()[1].plan.posted.take()));
        }
        let attempts = line.duo.send.attempts();
        assert!(attempts < 100, "{active:?} {end}: {attempts} attempts");
    }
}

#[test]
fn a_test_polls_only_the_rail_that_carries_data_and_every_look_polls_the_standby_too() {
    let mut line = Line::new([1; 2]);
    let (room, _) = line.message(0);
    let request = line.duo.irecv(&[room]);
    // The first test also takes the completions of questions and slots.
    assert_eq!(line.duo.recv.test(&request).expect("a test"), None);
    let polls = |line: &Line| [0, 1].map(|rail| line.ends[1].nics()[rail].plan.polls.take());
    polls(&line);
    for _ in 0..10 {
        assert_eq!(line.duo.recv.test(&request).expect("a test"), None);
    }
    assert_eq!(polls(&line), [10, 0]);
    line.duo.recv.arm(&mut |_| {});
    assert!(!polls(&line).contains(&0), "the answers of the standby would end each sleep");
    line.pass(1);
    assert!(!polls(&line).contains(&0), "errors of the standby would be noticed late");
}

#[test]
fn a_test_polls_one_of_two_rails_if_the_message_is_there_and_both_if_nothing_is() {
    let mut line = Line::new([2; 2]);
    let polls = |line: &Line| {
        let of = |nic: &Meddler| nic.plan.polls.take();
        line.ends.each_ref().map(|end| end.nics().iter().map(of).sum::<usize>())
    };
    for number in 0..20 {
        let (room, message) = line.message(number);
        let received = line.duo.irecv(&[room]);
        assert_eq!(line.duo.recv.test(&received).expect("a test"), None);
        polls(&line);
        assert_eq!(line.duo.recv.test(&received).expect("a test"), None);
        assert_eq!(polls(&line), [0, 2], "message {number}");
        let sent = line.duo.isend(&message, 0);
        assert!(line.duo.send.test(&sent).expect("a test").is_some());
        assert!(line.duo.recv.test(&received).expect("a test").is_some());
        // The first tests also take the answers to questions. Then the turns of the queues are those of the rows.
        if number >= 4 {
            assert_eq!(polls(&line), [1; 2], "message {number}");
        }
    }
}

#[test]
fn a_software_nic_carries_data_with_warnings_while_a_device_of_another_kind_does_not_work() {
    type Kinds = Either<Meddler, SoftNic>;
    warnings::keep();
    let told =
        || ["data goes through", "data no longer goes"].map(|what| warnings::with(&[what]).len());
    let devices: [NullNic; 2] = NullNic::ports();
    let devices = devices.map(Meddler::new);
    let rails = devices.each_ref().map(|device| {
        let address = "127.0.0.1:0".parse().expect("an address");
        let soft = SoftNic::open(&SoftConfig::new("soft", address)).expect("a software NIC");
        [Kinds::First(device.clone()), Kinds::Second(soft)]
    });
    let mut line =
        Line::over(rails, [CommSettings::default(); 2], [1; 2], Duration::from_micros(200));
    let mut numbers = 0..MESSAGES;
    line.until(&[0]);
    for end in [0, 1] {
        assert_eq!(told(), [2 * end; 2], "each end tells");
        numbers.by_ref().take(10).for_each(|number| line.exchange(number));
        devices[end].set_down(true);
        line.until(&[1]);
        numbers.by_ref().take(10).for_each(|number| line.exchange(number));
        assert_eq!(told(), [2 * end + 2, 2 * end], "each end tells once");
        devices[end].set_down(false);
        line.until(&[0]);
        line.pass(100);
    }
    assert_eq!(told(), [4; 2], "each end tells once of each change");
}

#[test]
fn messages_go_on_over_the_other_rail_whichever_rail_a_device_reports() {
    let events = [(Verb::AsyncEvent, "device fatal"), (Verb::QpEvent, "QP fatal")];
    for (end, rail, event, keeps) in (0..2).flat_map(|end| {
        let rails = (0..2).flat_map(move |rail| events.map(|event| (rail, event)));
        rails.flat_map(move |(rail, event)| [false, true].map(|keeps| (end, rail, event, keeps)))
    }) {
        let mut line = Line::new([2; 2]);
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

#[test]
fn a_rail_whose_port_has_another_gid_gets_new_queue_pairs_and_carries_data_again() {
    for (end, rail) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut line = Line::new([2; 2]);
        let before = line.duo.send.attempts();
        let nic = &line.ends[end].nics()[rail];
        let port = nic.query_port().expect("a port");
        nic.plan.port.set(Some(PortAttr { gid: Gid([9; 16]), ..port }));
        // These NICs report nothing about a port, and are asked every 250 ms.
        line.pass(300);
        assert!(line.duo.send.attempts() > before, "{end} {rail}");
        line.pass(1_000);
        assert_eq!(line.rails(), [0, 1], "{end} {rail}");
        (0..10).for_each(|number| line.exchange(number));
        let attempts = line.duo.send.attempts() - before;
        assert!(attempts < 5, "{end} {rail}: {attempts} attempts");
    }
}

#[test]
fn an_idle_connection_outlives_outages_that_are_far_apart() {
    for end in 0..2 {
        let mut line = Line::new([2; 2]);
        let plug = |line: &Line, rail: usize, is_in: bool| {
            line.ends[end].nics()[rail].set_down(!is_in);
        };
        plug(&line, 1, false);
        line.until(&[0]);
        // Longer than a recovery may take.
        line.pass(80_000);
        // For a moment no rail is left.
        plug(&line, 0, false);
        line.pass(1_000);
        plug(&line, 0, true);
        line.pass(80_000);
        plug(&line, 1, true);
        line.until(&[0, 1]);
        (0..10).for_each(|number| line.exchange(number));
    }
}

/// Lets both ends go on until one has failed to make new queue pairs, and returns its error.
fn outlast_recovery(line: &mut Line) -> String {
    for _ in 0..120_000 {
        line.now_ns += 1_000_000;
        let ends = [line.duo.send.check_peer(line.now_ns), line.duo.recv.check_peer(line.now_ns)];
        if let Some(error) = ends.into_iter().find_map(Result::err) {
            assert!(matches!(error, Error::Recovery(_)), "{error}");
            return error.to_string();
        }
    }
    panic!("no end gives up");
}

#[test]
fn the_error_that_ends_a_connection_names_each_rail_with_its_fault() {
    let port_down: Change = |nic| nic.set_down(true);
    let refuses_peers: Change = |nic| nic.plan.refuses_peers.set(true);
    let refuses_qps: Change = |nic| nic.plan.failing.set(Some(Verb::CreateQp));
    let (down, refused) = ("port down at this end", "refused by the device of this end");
    for (ends, changes, text) in [
        ([0, 0], [port_down; 2], format!("rail 0+1: {down}")),
        ([0, 1], [port_down; 2], format!("rail 0: {down}, rail 1: down or refused at the peer")),
        ([0, 0], [refuses_qps, port_down], format!("rail 1: {down}, rail 0: {refused}")),
        ([0, 0], [refuses_peers; 2], format!("rail 0+1: {refused}")),
    ] {
        // The sender gives up first.
        let recovery_timeout_ns = 3_000_000_000;
        let hasty = CommSettings { recovery_timeout_ns, ..CommSettings::default() };
        let mut line = Line::with([hasty, CommSettings::default()], [2; 2]);
        for (rail, (end, change)) in ends.into_iter().zip(changes).enumerate() {
            change(&line.ends[end].nics()[rail]);
        }
        line.ends[0].nics()[0].plan.event.set(Some((Verb::QpEvent, "QP fatal")));
        let error = outlast_recovery(&mut line);
        assert!(error.contains(&format!("; {text}; ")), "{text} in: {error}");
    }
}

#[test]
fn the_error_that_ends_a_connection_names_rails_that_did_not_answer() {
    let mut line = Line::new([2; 2]);
    for nic in line.ends.iter().flat_map(Rails::nics) {
        nic.plan.holding.set(true);
    }
    let _received = line.duo.irecv(&[line.to.room(0, 64, 0)]);
    let _sent = line.duo.isend(&line.from.message(0, 64), 0);
    let error = outlast_recovery(&mut line);
    assert!(error.contains("; rail 0+1: no answer; "), "{error}");
}
