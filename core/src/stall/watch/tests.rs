extern crate std;

use super::*;
use crate::stall::Cause;

const LIMIT_NS: u64 = 10_000 * MS;
const LOOK_NS: u64 = 50 * MS;

fn settings(name: &str) -> StallSettings {
    let process = Process::new(7, name);
    StallSettings { after_ns: LIMIT_NS, process, ..StallSettings::default() }
}

/// Two ends of a connection, whose keepers look every 50 ms.
struct Pair {
    watches: [Watch; 2],
    counts: [Counts; 2],
    now_ns: u64,
    /// Whether each end's keeper looks.
    looks: [bool; 2],
    warnings: std::vec::Vec<(u64, Role, Verdict)>,
}

impl Pair {
    fn new(is_shared: bool) -> Self {
        let watch = |role, name| Watch::new(settings(name), role, is_shared, false);
        Pair {
            watches: [watch(Role::Sender, "a"), watch(Role::Receiver, "b")],
            counts: [Counts::default(); 2],
            now_ns: 0,
            looks: [true; 2],
            warnings: std::vec::Vec::new(),
        }
    }

    /// Looks at both ends until `until_ns`. The sender's program repeats a call.
    fn run(&mut self, until_ns: u64, wait: Wait) {
        while self.now_ns < until_ns {
            self.now_ns += LOOK_NS;
            for (at, role) in [Role::Sender, Role::Receiver].into_iter().enumerate() {
                if !self.looks[at] {
                    continue;
                }
                if role == Role::Sender && self.watches[at].is_armed() && wait != Wait::None {
                    self.watches[at].called(wait, self.now_ns);
                }
                self.watches[at].look(self.counts[at], self.now_ns);
                if let Some((view, asks)) = self.watches[at].to_send(self.now_ns) {
                    self.watches[1 - at].heard(view, asks);
                }
                let warning =
                    self.watches[at].warning(self.now_ns, || OwnNetwork::of_host(Some(true)));
                self.warnings.extend(warning.map(|verdict| (self.now_ns, role, verdict)));
            }
        }
    }
}

const SEND: Wait = Wait::Send { tag: 1, len: 8 };

#[test]
fn both_ends_warn_alike_at_the_limit_and_then_at_doubling_intervals() {
    let mut pair = Pair::new(true);
    pair.run(100 * LIMIT_NS / 10, SEND);
    for role in [Role::Sender, Role::Receiver] {
        let own = pair.warnings.iter().filter(|(_, end, _)| *end == role);
        let times: std::vec::Vec<u64> = own.clone().map(|(at_ns, ..)| at_ns / LIMIT_NS).collect();
        assert_eq!(times, [1, 2, 4, 8], "{role:?}");
        assert!(own.clone().all(|(_, _, verdict)| verdict.cause == Cause::NoReceive));
        assert!(own.clone().all(|(_, _, verdict)| verdict.processes[1].host[0] == b'b'));
    }
    assert_eq!(pair.watches[0].stalls(), 1);
    assert!(pair.watches[0].verdict().is_some());
}

#[test]
fn progress_ends_a_stall_and_the_next_one_is_warned_of_anew() {
    let mut pair = Pair::new(true);
    pair.run(3 * LIMIT_NS, SEND);
    pair.counts = [Counts { begun: 1, done: 1, seen: 1, ..Counts::default() }; 2];
    let before = pair.warnings.len();
    pair.run(pair.now_ns + LIMIT_NS / 2, SEND);
    assert_eq!(pair.watches[0].verdict(), None);
    assert_eq!(pair.warnings.len(), before);
    pair.run(pair.now_ns + LIMIT_NS, SEND);
    assert_eq!(pair.watches[0].stalls(), 2);
}

#[test]
fn an_end_that_waits_for_nothing_asks_nothing_and_warns_of_nothing() {
    let mut pair = Pair::new(true);
    pair.run(5 * LIMIT_NS, Wait::None);
    assert!(pair.warnings.is_empty());
    // The receiver has posted receives ahead, and its program does not test them.
    pair.counts[1].begun = 3;
    pair.run(10 * LIMIT_NS, Wait::None);
    assert!(pair.warnings.is_empty());
    assert!(pair.watches.iter().all(|watch| watch.next_ask_ns == 0));
}

#[test]
fn a_peer_whose_keeper_does_not_look_is_stopped() {
    let mut pair = Pair::new(true);
    pair.run(LIMIT_NS / 10, Wait::None);
    pair.looks[1] = false;
    pair.run(3 * LIMIT_NS, SEND);
    let causes: std::vec::Vec<Cause> = pair.warnings.iter().map(|(.., v)| v.cause).collect();
    assert_eq!(causes, [Cause::Stopped { end: Role::Receiver }; 2]);
    assert!(pair.warnings[0].0 < LIMIT_NS + LIMIT_NS / 2);
    assert_eq!(pair.warnings[0].2.processes[1], Process::new(7, "b"), "it has named itself before");
}

#[test]
fn a_stopped_peer_is_asked_ever_less_often_and_one_that_answers_every_30_s_at_least() {
    let mut pair = Pair::new(true);
    pair.run(LIMIT_NS / 10, Wait::None);
    pair.looks[1] = false;
    let mut asked = std::vec::Vec::new();
    while pair.now_ns < 100 * LIMIT_NS {
        let next_ask_ns = pair.watches[0].next_ask_ns;
        pair.run(pair.now_ns + LOOK_NS, SEND);
        if pair.watches[0].next_ask_ns != next_ask_ns {
            asked.push(pair.now_ns);
        }
    }
    assert!((5..20).contains(&asked.len()), "{} questions", asked.len());
    pair.looks[1] = true;
    pair.run(pair.now_ns + LIMIT_NS / 2, SEND);
    let next_ask_ns = pair.watches[0].next_ask_ns;
    assert!(next_ask_ns <= pair.now_ns + ASK_EVERY_MAX_NS, "{next_ask_ns} after {}", pair.now_ns);
}

#[test]
fn a_peer_of_an_older_version_is_judged_from_one_side() {
    let mut pair = Pair::new(false);
    pair.run(LIMIT_NS + LIMIT_NS / 2, SEND);
    let [(_, Role::Sender, verdict)] = pair.warnings[..] else { panic!("{:?}", pair.warnings) };
    assert_eq!(verdict.cause, Cause::NoReceiveSeen);
}

#[test]
fn a_watch_that_is_off_says_nothing_and_still_answers() {
    let mut pair = Pair::new(true);
    let off = StallSettings { after_ns: 0, ..settings("b") };
    pair.watches[1] = Watch::new(off, Role::Receiver, true, false);
    pair.run(2 * LIMIT_NS, SEND);
    assert!(pair.warnings.iter().all(|(_, role, _)| *role == Role::Sender));
    assert_eq!(pair.warnings[0].2.cause, Cause::NoReceive);
}

#[test]
fn a_rank_over_tcp_counts_its_stalls_and_leaves_the_verdict_to_the_ranks() {
    let mut pair = Pair::new(true);
    for watch in &mut pair.watches {
        (watch.settings.is_judged_above, watch.moves_in_calls) = (true, true);
    }
    for stall in 1..=2 {
        pair.counts[0] = Counts { begun: stall, done: stall - 1, ..Counts::default() };
        pair.run(pair.now_ns + 3 * LIMIT_NS, Wait::None);
        assert_eq!(pair.watches[0].stalls(), stall);
        let still_ms = pair.watches[0].view(pair.now_ns).still_ms;
        assert!(u64::from(still_ms) * MS > 2 * LIMIT_NS, "{still_ms} ms");
    }
    assert!(pair.warnings.is_empty() && pair.watches[0].verdict().is_none());
}

#[test]
fn a_rank_that_judges_itself_hears_only_what_the_network_does_not_do() {
    let mut pair = Pair::new(true);
    for watch in &mut pair.watches {
        watch.settings.is_judged_above = true;
    }
    pair.run(2 * LIMIT_NS, SEND);
    assert!(pair.warnings.is_empty());
    pair.looks[1] = false;
    pair.counts[0] = Counts { begun: 1, seen: 1, ..Counts::default() };
    pair.run(4 * LIMIT_NS, SEND);
    assert!(pair.warnings.is_empty(), "the ranks themselves name a rank that is stopped");
    pair.looks[1] = true;
    pair.counts = [1, 1].map(|begun| Counts { begun, seen: 1, ..Counts::default() });
    pair.run(8 * LIMIT_NS, SEND);
    assert_eq!(pair.warnings[0].2.cause, Cause::Network { to: Role::Receiver, count: 1 });
}

#[test]
fn a_program_that_sleeps_in_a_wait_may_sleep_for_four_seconds() {
    for (parks, waits_ms) in [(false, 1_000), (true, 4_000)] {
        let mut watch = Watch::new(settings("a"), Role::Receiver, true, false);
        watch.called(Wait::Recv, MS);
        if parks {
            watch.park(Some(MS));
        }
        let mut last_ms = 0;
        for now_ms in (50..6_000).step_by(50) {
            watch.look(Counts::default(), now_ms * MS);
            if watch.view(now_ms * MS).is_waiting {
                last_ms = now_ms;
            }
        }
        assert_eq!(last_ms, waits_ms, "parks: {parks}");
    }
}

#[test]
fn a_program_that_sleeps_is_in_its_call_until_a_request_is_done() {
    let mut watch = Watch::new(settings("a"), Role::Receiver, true, false);
    let pending = Counts { begun: 1, ..Counts::default() };
    watch.look(pending, MS);
    watch.called(Wait::Test, 2 * MS);
    watch.park(Some(2 * MS));
    watch.look(pending, 2_000 * MS);
    assert_eq!((watch.view(3_000 * MS).call_ms, watch.view(3_000 * MS).wait), (0, Wait::Test));
    watch.look(Counts { done: 1, untested: 1, ..pending }, 3_000 * MS);
    assert_eq!(watch.view(4_000 * MS).call_ms, 3_998);
}

/// Looks at a pair as keepers do that let ends rest, for a minute. Every `period_ns` the receiver's program tests its
/// receive, and then sleeps in that wait if it `parks`. Returns the times of the warnings of each end.
fn resting(counts: [Counts; 2], period_ns: u64, parks: bool) -> [std::vec::Vec<u64>; 2] {
    let mut pair = Pair::new(true);
    pair.counts = counts;
    let (mut warnings, mut next_ns, mut has_news) =
        ([const { std::vec::Vec::new() }; 2], [0, 1_200 * MS], [false; 2]);
    for now_ns in (0..60_000 * MS).step_by(LOOK_NS as usize) {
        let receiver = &mut pair.watches[1];
        if now_ns % period_ns == 0 {
            if receiver.is_armed() {
                receiver.called(Wait::Test, now_ns);
                next_ns[1] = now_ns;
            }
            receiver.park(parks.then_some(now_ns));
        }
        for at in 0..2 {
            if now_ns < next_ns[at] && !core::mem::take(&mut has_news[at]) {
                continue;
            }
            pair.watches[at].look(pair.counts[at], now_ns);
            if pair.watches[at].warning(now_ns, || OwnNetwork::of_host(Some(true))).is_some() {
                warnings[at].push(now_ns / (1_000 * MS));
            }
            if let Some((view, asks)) = pair.watches[at].to_send(now_ns) {
                pair.watches[1 - at].heard(view, asks);
                has_news[1 - at] = true;
            }
            next_ns[at] = now_ns + pair.watches[at].rest_ns().unwrap_or(LOOK_NS);
        }
    }
    warnings
}

#[test]
fn ends_that_rest_warn_at_doubling_intervals() {
    let pending = Counts { begun: 1, ..Counts::default() };
    for warnings in resting([Counts::default(), pending], 2_000 * MS, true) {
        let [first, second, third] = warnings[..] else { panic!("{warnings:?}") };
        assert!((10..14).contains(&first), "{warnings:?}");
        assert!((20..24).contains(&second) && (40..50).contains(&third), "{warnings:?}");
    }
}

#[test]
fn a_program_that_seldom_tests_is_not_warned_of() {
    let pending = Counts { begun: 1, ..Counts::default() };
    for period_ms in [3_000, 5_000] {
        let warnings = resting([Counts::default(), pending], period_ms * MS, false);
        assert!(warnings.iter().all(|of_end| of_end.is_empty()), "{warnings:?}");
    }
}

#[test]
fn a_request_that_nobody_tests_is_warned_of_once_each_time() {
    let untested = Counts { begun: 1, done: 1, untested: 1, ..Counts::default() };
    for warnings in resting([Counts::default(), untested], 1_000_000 * MS, false) {
        assert!(warnings.len() <= 3, "{warnings:?}");
        assert!(warnings.is_sorted_by(|one, next| next >= &(one + 8)), "{warnings:?}");
    }
}

/// An end whose program repeats a call or makes none, for 20 s, beside other ends of its process.
fn process_of(peers: [(u32, Wait); 2]) -> [Watch; 2] {
    let process_wait = Some(&*std::boxed::Box::leak(std::boxed::Box::new(ProcessWait::new())));
    let settings = StallSettings { process_wait, ..settings("b") };
    let mut ends = [Ends::default(), Ends::default()];
    let mut watches =
        [Role::Receiver, Role::Sender].map(|role| Watch::new(settings, role, true, false));
    for (watch, (pid, _)) in watches.iter_mut().zip(peers) {
        watch.heard(
            EndView { process: Process { pid, ..settings.process }, ..EndView::default() },
            false,
        );
    }
    for now_ns in (LOOK_NS..2 * LIMIT_NS).step_by(LOOK_NS as usize) {
        for ((watch, (_, wait)), ends) in watches.iter_mut().zip(peers).zip(&mut ends) {
            ends.peer = Some(([192, 0, 2, 1], 1).into());
            if wait != Wait::None {
                watch.called(wait, now_ns);
            }
            watch.attend(
                Counts::default(),
                now_ns,
                OwnNetwork::default,
                NicCounters::default,
                ends,
            );
        }
    }
    watches
}

#[test]
fn an_end_without_calls_tells_for_whom_its_process_waits_on_another_connection() {
    let wait_of = |peers| process_of(peers)[0].view(2 * LIMIT_NS).wait;
    let third = OtherPeer { pid: 33, ip: [192, 0, 2, 1].into() };
    assert_eq!(wait_of([(11, Wait::None), (33, SEND)]), Wait::Elsewhere(third));
    assert_eq!(wait_of([(11, Wait::Test), (33, SEND)]), Wait::Test, "it calls here too");
    assert_eq!(wait_of([(11, Wait::None), (33, Wait::None)]), Wait::None, "it waits for nobody");
    assert_eq!(wait_of([(33, Wait::None), (33, SEND)]), Wait::None, "both have the peer");
    assert_eq!(wait_of([(11, Wait::None), (7, SEND)]), Wait::None, "it waits for itself");
}

#[test]
fn a_wait_that_has_ended_is_told_for_four_seconds_at_most() {
    let [here, _] = process_of([(11, Wait::None), (33, SEND)]);
    assert_ne!(here.view(2 * LIMIT_NS + 3_000 * MS).wait, Wait::None);
    assert_eq!(here.view(2 * LIMIT_NS + 5_000 * MS).wait, Wait::None);
}

#[test]
fn the_counters_of_a_verdict_are_those_since_the_stall_began() {
    let mut watch = Watch::new(settings("a"), Role::Sender, false, false);
    let (mut ends, mut counters) = (Ends::default(), NicCounters::default());
    let mut counts = Counts { begun: 1, ..Counts::default() };
    for stall in 1..=2 {
        counts = Counts { begun: stall, done: stall - 1, ..counts };
        let began_ns = (stall - 1) * 2 * LIMIT_NS;
        for now_ns in (began_ns + LOOK_NS..began_ns + 2 * LIMIT_NS).step_by(LOOK_NS as usize) {
            counters.ack_timeouts += 1;
            watch.attend(counts, now_ns, OwnNetwork::default, || counters, &mut ends);
        }
        let (counted, ms) = watch.verdict().unwrap().own.counted.unwrap();
        assert_eq!(counted.ack_timeouts * LOOK_NS / MS, ms.into());
        assert!(u64::from(ms) * MS <= LIMIT_NS && u64::from(ms) * MS >= LIMIT_NS - 2 * LOOK_NS);
    }
}
