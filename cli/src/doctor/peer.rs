//! Tries of the pairs of devices between this host and others.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use invar::{Device, Settings};

use super::equal;
use super::host::Host;
use super::losses::Losses;
use super::mend::set_mtu;
use super::report::{Finding, Report, Severity};
use crate::failure::Failure;
use crate::perf::SERVER_PORT;
use crate::perf::about::About;
use crate::perf::may_reach;
use crate::perf::probe::{Cause, PairFailure, Peer, Tried};
use crate::resolved;

/// The name under which the findings stand.
const NAME: &str = "peer";
/// How many hosts are called at a time.
const CALLS: usize = 64;
/// The time after which no further pair is tried. A pair that fails may take a minute.
const TRY_FOR: Duration = Duration::from_secs(15 * 60);

/// An interface with room for a path MTU has an MTU that is larger by this.
const HEADERS: u32 = 104;

/// Half a round trip of a short message takes less in any network of a cluster.
const SLOW_US: f64 = 1000.0;

/// The rule that says which pairs of devices are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// Each device of this host is tried with each device of the peer.
    All,
    /// Each of this host's devices with one device of the peer after another, until one is reached.
    UntilReached,
}

/// A host with a server of `invar doctor --peer`, and the results of trying to reach that host.
pub(super) struct Tries {
    /// The host, as the user names it.
    pub(super) addr: String,
    pub(super) outcome: Outcome,
}

/// The results of trying to reach a host.
pub(super) enum Outcome {
    /// It does not answer.
    Silent,
    /// The pairs that were tried. Without any there was no pair, or no time.
    Pairs(Vec<Pair>),
}

/// The outcome for a pair of devices.
pub(super) struct Pair {
    pub(super) ours: String,
    pub(super) theirs: String,
    pub(super) outcome: Result<Tried, PairFailure>,
}

impl Pair {
    /// Whether messages were sent, or should have been. A device may be of no use on the way to the peer,
    /// as without an IPv4 address.
    pub(super) fn was_tried(&self) -> bool {
        !matches!(&self.outcome, Err(PairFailure { failure, .. }) if failure.is_usage())
    }
}

/// The reason why a host does not answer.
struct Silence {
    failure: Failure,
    /// Whether the host's name stands for an address.
    is_found: bool,
}

/// Shows which pair is tried: a bar on a terminal, and a line for each pair elsewhere. Both go to stderr.
struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Progress {
    fn new(pairs: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        // The position is the number of the pair that is being tried.
        let bar = ProgressBar::new(pairs as u64).with_style(style);
        Progress { bar, is_terminal: io::stderr().is_terminal() }
    }

    /// Goes on to the next pair.
    fn next(&self) {
        self.bar.inc(1);
    }

    /// Shows that the pair is tried.
    fn show(&self, pair: &str) {
        self.bar.set_message(pair.to_owned());
        if !self.is_terminal {
            let (at, of) = (self.bar.position(), self.bar.length().unwrap_or_default());
            // The findings matter, even if nobody reads this.
            let _ = writeln!(io::stderr(), "pair {at} of {of}: {pair}");
        }
    }

    fn end(self) {
        self.bar.finish_and_clear();
    }
}

/// Orders pairs in rounds, so that each device is tried early. A round has one pair of each device, and
/// devices in turn begin with different ones of the peer. `of` tells the device of a pair.
fn in_rounds<T, D: PartialEq>(pairs: Vec<T>, of: impl Fn(&T) -> D) -> Vec<T> {
    // The pairs of a device come one after another.
    let mut of_device: Vec<Vec<T>> = Vec::new();
    for pair in pairs {
        match of_device.last_mut().filter(|pairs| of(&pairs[0]) == of(&pair)) {
            Some(pairs) => pairs.push(pair),
            None => of_device.push(vec![pair]),
        }
    }
    let mut rounds = Vec::new();
    for (number, mut pairs) in of_device.into_iter().enumerate() {
        let first = number % pairs.len();
        pairs.rotate_left(first);
        rounds.extend(pairs.into_iter().enumerate());
    }
    rounds.sort_by_key(|(round, _)| *round);
    rounds.into_iter().map(|(_, pair)| pair).collect()
}

/// Calls each of the hosts, many at a time.
fn call_all(addrs: &[String]) -> Vec<Result<Peer, Silence>> {
    let call_some = |addrs: &[String]| {
        thread::scope(|scope| {
            let calls: Vec<_> = addrs.iter().map(|addr| scope.spawn(|| call(addr))).collect();
            let no_answer = |_| {
                let failure = Failure::new("the call ended in a panic");
                Err(Silence { failure, is_found: true })
            };
            calls.into_iter().map(|call| call.join().unwrap_or_else(no_answer)).collect::<Vec<_>>()
        })
    };
    addrs.chunks(CALLS).flat_map(call_some).collect()
}

fn call(addr: &str) -> Result<Peer, Silence> {
    let silence = |is_found| move |failure| Silence { failure, is_found };
    let addrs = resolved(addr, Some(SERVER_PORT)).map_err(silence(false))?;
    Peer::call(addrs).map_err(silence(true))
}

/// Tries pairs of devices of one transport, one pair at a time.
///
/// # Errors
///
/// An address that cannot be one.
pub(super) fn check(
    addrs: &[String],
    choice: Choice,
    settings: &Settings,
    host: &Host,
    report: &mut Report,
) -> Result<Vec<Tries>, Failure> {
    report.begin(NAME);
    let mut devices = Device::survey(settings)?.devices;
    devices.retain(|info| settings.takes(info.kind) && may_reach(info));
    let own = About::here(settings);
    let mut peers = Vec::new();
    let mut hosts = Vec::new();
    for (addr, peer) in addrs.iter().zip(call_all(addrs)) {
        let outcome = match &peer {
            Err(Silence { failure, .. }) if failure.is_usage() => {
                return Err(Failure::usage(failure));
            }
            Err(silence) => {
                tell_silent(addr, silence, report);
                Outcome::Silent
            }
            Ok(peer) => {
                if let Some((about, clock)) = &peer.about {
                    equal::tell(addr, &own, about, report);
                    equal::tell_clock(addr, *clock, report);
                }
                Outcome::Pairs(Vec::new())
            }
        };
        hosts.push(Tries { addr: addr.clone(), outcome });
        peers.push(peer.ok());
    }
    let pairs = peers.iter().enumerate().filter_map(|(at, peer)| Some((at, peer.as_ref()?)));
    let pairs = pairs.flat_map(|(at, peer)| {
        peer.pairs(&devices).into_iter().map(move |(ours, theirs)| (at, peer, ours, theirs))
    });
    let pairs = in_rounds(pairs.collect(), |(at, _, ours, _)| (*at, ours.name.clone()));
    let before = Losses::read(host);
    let start = Instant::now();
    let progress = Progress::new(pairs.len());
    let mut left = 0;
    for (at, peer, ours, theirs) in &pairs {
        let Tries { addr, outcome: Outcome::Pairs(tried) } = &mut hosts[*at] else { continue };
        progress.next();
        let reaches = |pair: &Pair| pair.ours == ours.name && pair.outcome.is_ok();
        if choice == Choice::UntilReached && tried.iter().any(reaches) {
            continue;
        }
        if start.elapsed() > TRY_FOR {
            left += 1;
            continue;
        }
        progress.show(&format!("{} to {} of {addr}", ours.name, theirs.name));
        tried.push(Pair {
            outcome: peer.try_pair(&ours.name, &theirs.name, settings),
            ours: ours.name.clone(),
            theirs: theirs.name.clone(),
        });
    }
    progress.end();
    if left > 0 {
        report.unseen(format!(
            "{left} of {} pairs are not tried: the others took {} minutes",
            pairs.len(),
            TRY_FOR.as_secs() / 60
        ));
    }
    let lost = Losses::read(host).since(&before);
    let with_pairs: BTreeSet<usize> = pairs.iter().map(|(at, ..)| *at).collect();
    for (at, Tries { addr, outcome }) in hosts.iter().enumerate() {
        let Outcome::Pairs(tried) = outcome else { continue };
        tell(addr, tried, report);
        let has_pair = with_pairs.contains(&at);
        let no_time = has_pair && tried.is_empty();
        if !no_time && !tried.iter().any(Pair::was_tried) {
            tell_none(addr, has_pair, report);
        }
    }
    if !pairs.is_empty() {
        tell_losses(&lost, report);
    }
    Ok(hosts)
}

fn tell_silent(addr: &str, silence: &Silence, report: &mut Report) {
    report.find(Finding {
        severity: Severity::Bad,
        id: "peer-silent",
        subject: addr.to_owned(),
        what: silence.failure.to_string(),
        costs: "nothing else of this peer can be tried".to_owned(),
        mend: match silence.is_found {
            true => "invar doctor --serve   # on that host, and a firewall must let its port pass",
            false => "getent hosts NAME   # then DNS or /etc/hosts",
        }
        .to_owned(),
    });
}

fn tell_none(addr: &str, has_pair: bool, report: &mut Report) {
    report.find(Finding {
        severity: Severity::Bad,
        id: "pair-none",
        subject: addr.to_owned(),
        what: match has_pair {
            false => "it has no device of a transport that this host has",
            true => "none of this host's devices can be used on the way to it",
        }
        .to_owned(),
        costs: "Invar does not reach this peer".to_owned(),
        mend: "invar devices   # on both hosts, then compare kinds and addresses".to_owned(),
    });
}

/// Reports counters that grew meanwhile. Other programs of the host may be the reason.
fn tell_losses(lost: &[(String, u64)], report: &mut Report) {
    if lost.is_empty() {
        report.well("no counter of lost packets grew meanwhile");
    }
    for (name, grown) in lost {
        let mend = match name.split_once(' ') {
            None => {
                "nstat -az   # then the limits of `invar doctor buffers`, the NIC and the switch"
            }
            Some(_) => "rdma statistic show   # then the cable, and flow control at NIC and switch",
        };
        report.find(Finding {
            severity: Severity::Note,
            id: "peer-loss",
            subject: name.clone(),
            what: format!("this counter of the host grew by {grown} while the pairs were tried"),
            costs: "each lost packet delays its message".to_owned(),
            mend: mend.to_owned(),
        });
    }
}

/// Reports each pair. A device that reaches the peer somehow may lead to another network than one of the
/// peer's devices.
fn tell(addr: &str, pairs: &[Pair], report: &mut Report) {
    let reach = pairs.iter().filter(|pair| pair.outcome.is_ok());
    let reach: BTreeSet<&str> = reach.map(|pair| pair.ours.as_str()).collect();
    for pair in pairs {
        let Pair { ours, theirs, outcome } = pair;
        let subject = format!("{ours} to {theirs} of {addr}");
        let find = |severity, id, what: String, costs: &str, mend: String| Finding {
            severity,
            id,
            subject: subject.clone(),
            what,
            costs: costs.to_owned(),
            mend,
        };
        match outcome {
            Err(PairFailure { failure, .. }) if !pair.was_tried() => {
                report.unseen(format!("{subject}: {failure}"));
            }
            Err(PairFailure { failure, cause }) => {
                let other = reach.contains(ours.as_str());
                let severity = if other { Severity::Note } else { Severity::Bad };
                let costs = if other {
                    "messages between these two devices; this device reaches another one of the peer"
                } else {
                    "messages over this device do not reach the peer"
                };
                let (id, what, mend) = conclusion(pair, addr, failure, *cause);
                report.find(find(severity, id, what, costs, mend));
            }
            Ok(tried) if tried.wrong > 0 => {
                let what = format!("{} bytes were wrong", tried.wrong);
                let mend = format!("invar perf --nic {ours} --connect {addr}");
                let costs = "results are wrong, or connections fail";
                report.find(find(Severity::Bad, "pair-wrong-bytes", what, costs, mend));
            }
            Ok(tried) if tried.fastest_us > SLOW_US => {
                let what = format!("half a round trip takes {:.0} us or more", tried.fastest_us);
                let costs = "packets are lost and sent again, or wait in queues; or an end is busy";
                let mend = format!(
                    "invar perf --nic {ours} --connect {addr}   # then the counters of NIC and switch"
                );
                report.find(find(Severity::Warn, "pair-slow", what, costs, mend));
            }
            Ok(Tried { path_mtu, half_round_trip_us, gbytes_per_s, .. }) => {
                let mtu = path_mtu.map_or(String::new(), |mtu| format!("path MTU {mtu}, "));
                report.well(format!(
                    "{subject}: {mtu}half a round trip {half_round_trip_us:.1} us, {gbytes_per_s:.2} \
                     GB/s in messages of 64 KiB"
                ));
            }
        }
    }
}

/// The id of a finding about a pair between which messages do not pass, what is wrong, and the command.
fn conclusion(
    pair: &Pair,
    addr: &str,
    failure: &Failure,
    cause: Option<Cause>,
) -> (&'static str, String, String) {
    let Pair { ours, theirs, .. } = pair;
    let lost = |from: String, to: String| {
        let what = format!("packets from {from} to {to} are lost, the others arrive: {failure}");
        let mend =
            "invar doctor firewall   # on both hosts, then the route and firewalls between them";
        ("pair-one-way", what, mend.to_owned())
    };
    match cause {
        None => {
            let mend =
                format!("invar perf --nic {ours} --connect {addr}   # then route and firewall");
            ("pair-unreachable", failure.to_string(), mend)
        }
        Some(Cause::LostThere) => lost(ours.clone(), format!("{theirs} of {addr}")),
        Some(Cause::LostHere) => lost(format!("{theirs} of {addr}"), ours.clone()),
        Some(Cause::Mtu { passes, fails }) => {
            let what = format!(
                "short messages pass: a path MTU of {passes} works, and one of {fails} does not: {failure}"
            );
            let and = "at both ends, or a larger MTU at each switch between them";
            let mend = set_mtu("INTERFACE", passes + HEADERS, and);
            ("pair-mtu", what, mend)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(ours: &str, theirs: &str, outcome: Result<u64, &str>) -> Pair {
        let tried = |wrong| Tried {
            path_mtu: Some(4096),
            half_round_trip_us: 2.25,
            fastest_us: if ours == "mlx5_3" { 3834.7 } else { 1.5 },
            gbytes_per_s: 11.5,
            wrong,
        };
        let outcome = outcome.map(tried).map_err(|text| Failure::new(text).into());
        Pair { ours: ours.to_owned(), theirs: theirs.to_owned(), outcome }
    }

    #[test]
    fn the_advice_on_a_silent_host_follows_from_the_call() {
        for (is_found, command) in [(true, "invar doctor --serve "), (false, "getent hosts ")] {
            let mut report = Report::default();
            let silence = Silence { failure: Failure::new("refused"), is_found };
            tell_silent("node8.invalid", &silence, &mut report);
            let mend = &report.finding("peer-silent").mend;
            assert!(mend.starts_with(command), "{mend}");
        }
        let is_found = |addr| call(addr).err().map(|silence| silence.is_found);
        assert_eq!(is_found("127.0.0.1:0"), Some(true));
        assert_eq!(is_found("node8:port"), Some(false));
    }

    #[test]
    fn each_device_is_tried_in_the_first_round() {
        let pairs = ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"];
        let ordered = in_rounds(pairs.to_vec(), |pair| pair[..1].to_owned());
        assert_eq!(ordered, ["a0", "b1", "c2", "a1", "b2", "c0", "a2", "b0", "c1"]);
        assert_eq!(in_rounds(vec!["a0", "b0"], |pair| pair[..1].to_owned()), ["a0", "b0"]);
    }

    #[test]
    fn the_cause_of_a_failure_is_told() {
        let mut report = Report::default();
        report.begin(NAME);
        let causes =
            [Cause::LostThere, Cause::LostHere, Cause::Mtu { passes: 1024, fails: 1408 }].map(Some);
        let pairs = causes.map(|cause| Pair {
            outcome: Err(PairFailure { failure: Failure::new("RETRY_EXC_ERR"), cause }),
            ..pair("mlx5_0", "mlx5_1", Ok(0))
        });
        let told = pairs.each_ref().map(|pair| {
            let mut report = Report::default();
            tell("node8", std::slice::from_ref(pair), &mut report);
            let id = report.short()[0].split(' ').nth(1).unwrap().to_owned();
            report.finding(&id).what.clone()
        });
        assert_eq!(
            told,
            [
                "packets from mlx5_0 to mlx5_1 of node8 are lost, the others arrive: RETRY_EXC_ERR",
                "packets from mlx5_1 of node8 to mlx5_0 are lost, the others arrive: RETRY_EXC_ERR",
                "short messages pass: a path MTU of 1024 works, and one of 1408 does not: RETRY_EXC_ERR",
            ]
        );
        tell("node8", &pairs, &mut report);
        let subject = "mlx5_0 to mlx5_1 of node8";
        let ids = ["pair-one-way", "pair-one-way", "pair-mtu"];
        assert_eq!(report.short(), ids.map(|id| format!("bad {id} {subject}")));
    }

    #[test]
    fn a_pair_that_fails_is_worse_if_its_device_reaches_nothing() {
        let mut report = Report::default();
        report.begin(NAME);
        let pairs = [
            pair("mlx5_0", "mlx5_0", Ok(0)),
            pair("mlx5_0", "mlx5_1", Err("RETRY_EXC_ERR")),
            pair("mlx5_1", "mlx5_1", Err("RETRY_EXC_ERR")),
            pair("mlx5_2", "mlx5_1", Ok(7)),
            pair("mlx5_3", "mlx5_1", Ok(0)),
            Pair {
                ours: "soft0".to_owned(),
                theirs: "soft0".to_owned(),
                outcome: Err(Failure::usage("no IPv4 address").into()),
            },
        ];
        tell("node8", &pairs, &mut report);
        assert_eq!(
            report.short(),
            [
                "bad pair-unreachable mlx5_1 to mlx5_1 of node8",
                "bad pair-wrong-bytes mlx5_2 to mlx5_1 of node8",
                "warn pair-slow mlx5_3 to mlx5_1 of node8",
                "note pair-unreachable mlx5_0 to mlx5_1 of node8",
            ]
        );
        let well = "mlx5_0 to mlx5_0 of node8: path MTU 4096, half a round trip 2.2 us, 11.50 GB/s in \
                    messages of 64 KiB";
        assert_eq!(report.lines(), [vec![well], vec!["soft0 to soft0 of node8: no IPv4 address"]]);
    }
}
