//! Tries of the pairs of devices between this host and another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use invar::{Device, Settings};

use super::host::Host;
use super::losses::Losses;
use super::report::{Finding, Report, Severity};
use crate::failure::Failure;
use crate::perf::probe::{Peer, Tried};

/// The name under which the findings stand.
const NAME: &str = "peer";
/// The time after which no further pair is tried. A pair that fails may take a minute.
const TRY_FOR: Duration = Duration::from_secs(15 * 60);

/// Half a round trip of a short message takes less in any network of a cluster.
const SLOW_US: f64 = 1000.0;

/// The outcome for a pair of devices.
struct Pair {
    ours: String,
    theirs: String,
    outcome: Result<Tried, Failure>,
}

impl Pair {
    /// Whether messages were sent, or should have been. A device may be of no use on the way to the peer,
    /// as without an IPv4 address.
    fn was_tried(&self) -> bool {
        !matches!(&self.outcome, Err(failure) if failure.is_usage())
    }
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

    fn begin(&self, pair: &str) {
        self.bar.inc(1);
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

/// Orders pairs in rounds, so that each device is tried early. A round has one pair of each of this host's
/// devices, and devices in turn begin with different ones of the peer.
fn in_rounds<T>(pairs: Vec<T>, ours: impl Fn(&T) -> String) -> Vec<T> {
    let mut of_device: BTreeMap<String, Vec<T>> = BTreeMap::new();
    for pair in pairs {
        of_device.entry(ours(&pair)).or_default().push(pair);
    }
    let mut rounds = Vec::new();
    for (number, mut pairs) in of_device.into_values().enumerate() {
        let first = number % pairs.len();
        pairs.rotate_left(first);
        rounds.extend(pairs.into_iter().enumerate());
    }
    rounds.sort_by_key(|(round, _)| *round);
    rounds.into_iter().map(|(_, pair)| pair).collect()
}

/// Tries every pair of devices of one transport.
pub(super) fn check(
    addr: &str,
    settings: &Settings,
    host: &Host,
    report: &mut Report,
) -> Result<(), Failure> {
    report.begin(NAME);
    let peer = match Peer::call(addr) {
        Ok(peer) => peer,
        Err(failure) if failure.is_usage() => return Err(failure),
        Err(failure) => {
            report.find(Finding {
                severity: Severity::Bad,
                id: "peer-silent",
                subject: addr.to_owned(),
                what: failure.to_string(),
                costs: "nothing else of this peer can be tried".to_owned(),
                mend:
                    "invar doctor --serve   # on that host, and a firewall must let its port pass"
                        .to_owned(),
            });
            return Ok(());
        }
    };
    let mut devices = Device::survey(settings)?.devices;
    devices.retain(|info| settings.takes(info.kind));
    let pairs = in_rounds(peer.pairs(&devices), |(ours, _)| ours.name.clone());
    let before = Losses::read(host);
    let (mut tried, start) = (Vec::new(), Instant::now());
    let progress = Progress::new(pairs.len());
    for (ours, theirs) in &pairs {
        if start.elapsed() > TRY_FOR {
            break;
        }
        progress.begin(&format!("{} to {} of {addr}", ours.name, theirs.name));
        tried.push(Pair {
            outcome: peer.try_pair(&ours.name, &theirs.name, settings),
            ours: ours.name.clone(),
            theirs: theirs.name.clone(),
        });
    }
    progress.end();
    if tried.len() < pairs.len() {
        let left = pairs.len() - tried.len();
        report.unseen(format!(
            "{left} of {} pairs are not tried: the others took {} minutes",
            pairs.len(),
            TRY_FOR.as_secs() / 60
        ));
    }
    let lost = Losses::read(host).since(&before);
    tell(addr, &tried, report);
    if !tried.iter().any(Pair::was_tried) {
        report.find(Finding {
            severity: Severity::Bad,
            id: "pair-none",
            subject: addr.to_owned(),
            what: match tried.is_empty() {
                true => "it has no device of a transport that this host has",
                false => "none of this host's devices can be used on the way to it",
            }
            .to_owned(),
            costs: "Invar does not reach this peer".to_owned(),
            mend: "invar devices   # on both hosts, then compare kinds and addresses".to_owned(),
        });
    }
    tell_losses(&lost, report);
    Ok(())
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
            Err(failure) if !pair.was_tried() => report.unseen(format!("{subject}: {failure}")),
            Err(failure) => {
                let other = reach.contains(ours.as_str());
                let severity = if other { Severity::Note } else { Severity::Bad };
                let costs = if other {
                    "messages between these two devices; this device reaches another one of the peer"
                } else {
                    "messages over this device do not reach the peer"
                };
                let mend =
                    format!("invar perf --nic {ours} --connect {addr}   # then route and firewall");
                report.find(find(severity, "pair-unreachable", failure.to_string(), costs, mend));
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
        let outcome = outcome.map(tried).map_err(Failure::new);
        Pair { ours: ours.to_owned(), theirs: theirs.to_owned(), outcome }
    }

    #[test]
    fn each_device_is_tried_in_the_first_round() {
        let pairs = ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"];
        let ordered = in_rounds(pairs.to_vec(), |pair| pair[..1].to_owned());
        assert_eq!(ordered, ["a0", "b1", "c2", "a1", "b2", "c0", "a2", "b0", "c1"]);
        assert_eq!(in_rounds(vec!["a0", "b0"], |pair| pair[..1].to_owned()), ["a0", "b0"]);
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
                outcome: Err(Failure::usage("no IPv4 address")),
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
