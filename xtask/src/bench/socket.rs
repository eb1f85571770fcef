//! Measures the socket transport beside a bare TCP stream. Two processes poll over loopback.

use std::path::Path;

use anyhow::{Context, Result};

use super::Args;
use super::plot::{self, Values};
use super::soft_nic::median;
use super::tcp;
use crate::shell::Shell;
use crate::workspace::Workspace;

const KIB: usize = 1 << 10;

/// An odd number, so that one run is the median.
const RUNS: usize = 5;

/// The number of messages in flight.
const WINDOW: usize = 8;

/// The bytes that one run of a stream moves, unless that takes more than [`RUN_MESSAGES_MAX`] messages.
const RUN_BYTES: usize = 1 << 30;
const RUN_MESSAGES_MAX: usize = 50_000;

/// The round trips of one run.
const ROUND_TRIPS: usize = 10_000;

struct Case {
    /// The size of a message in bytes.
    size: usize,
    measure: Measure,
    /// The bar for one socket, as a ratio to a bare stream. It is a minimum for throughput and a
    /// maximum for time.
    bar: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Measure {
    /// Half a round trip, in µs.
    HalfRoundTrip,
    /// Throughput, in Gbit/s.
    Throughput,
}

const fn stream(size: usize, bar: f64) -> Case {
    Case { size, measure: Measure::Throughput, bar }
}

const CASES: [Case; 7] = [
    Case { size: 8, measure: Measure::HalfRoundTrip, bar: 1.3 },
    stream(4 * KIB, 0.8),
    stream(16 * KIB, 0.8),
    stream(64 * KIB, 0.8),
    stream(256 * KIB, 0.95),
    stream(1024 * KIB, 0.95),
    stream(16 * 1024 * KIB, 0.95),
];

/// The share of a bare stream's throughput that many sockets must reach on a host with two CPUs.
const MANY_SOCKETS_BAR: f64 = 0.5;

pub(super) struct Link {
    pub(super) name: &'static str,
    /// The program's argument that selects this link.
    argument: &'static str,
}

/// The other links are measured against the first one. `socket-4x4` asks for four threads with four
/// sockets each. `raw` uses the congestion control that Invar chooses within a host, `raw-system` the
/// system's.
pub(super) const LINKS: [Link; 4] = [
    Link { name: "raw", argument: "raw" },
    Link { name: "socket", argument: "0x1" },
    Link { name: "socket-4x4", argument: "4x4" },
    Link { name: "raw-system", argument: "raw-system" },
];

/// The links that have a bar.
pub(super) fn barred() -> Vec<&'static str> {
    let [_raw, one, many, _system] = &LINKS;
    vec![one.name, many.name]
}

/// Prints the table and returns the cases that miss their bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let line = "build --release --package invar-testkit --bin bench_socket";
    shell.run(shell.cargo(line))?;
    let program = Workspace::load(shell)?.target_dir.join("release/bench_socket");
    let is_wanted = |(at, link): &(usize, &Link)| *at == 0 || args.wants(link.name);
    let links: Vec<&Link> =
        LINKS.iter().enumerate().filter(is_wanted).map(|(_, link)| link).collect();
    let mut missed = Vec::new();
    let names: Vec<&str> = links.iter().map(|link| link.name).collect();
    let about = format!("medians of {RUNS} runs on this host, {WINDOW} messages at a time");
    let mut medians = Values::new(about, &names);
    tcp::print_congestion_control();
    println!("{:>10} {:12} {:>9} {:>9} {:>9} {:>6}", "", "", "median", "least", "most", "ratio");
    for case in &CASES {
        let mut values = vec![Vec::new(); links.len()];
        // The links run in turns, so that other load on the host affects all of them.
        for _ in 0..RUNS {
            for (link, values) in links.iter().zip(&mut values) {
                let value = measure(shell, &program, link, case);
                values.push(value.with_context(|| link.name.to_owned())?);
            }
        }
        let first = median(&mut values[0]);
        if case.measure == Measure::Throughput {
            let rates = values.iter_mut().map(|values| median(values));
            medians.row(plot::bytes(case.size as u64), rates);
        }
        for (link, values) in links.iter().zip(&mut values) {
            let ratio = median(values) / first;
            let (median, least, most) = (values[RUNS / 2], values[0], values[RUNS - 1]);
            println!(
                "{:>10} {:12} {median:9.2} {least:9.2} {most:9.2} {ratio:6.2}  {}",
                case.size,
                link.name,
                case.measure.unit()
            );
            if !case.is_met(link, ratio) {
                missed.push(format!("{} at {} bytes ({ratio:.2} of raw)", link.name, case.size));
            }
        }
    }
    args.plot(&plot::SOCKET, &medians)?;
    Ok(missed)
}

impl Measure {
    fn unit(self) -> &'static str {
        match self {
            Measure::HalfRoundTrip => "µs half a round trip",
            Measure::Throughput => "Gbit/s",
        }
    }
}

impl Case {
    fn is_met(&self, link: &Link, ratio: f64) -> bool {
        match self.measure {
            _ if link.name == "raw-system" => true,
            Measure::HalfRoundTrip => ratio <= self.bar,
            Measure::Throughput if link.name == "socket-4x4" => ratio >= MANY_SOCKETS_BAR,
            Measure::Throughput => ratio >= self.bar,
        }
    }
}

fn measure(shell: &Shell, program: &Path, link: &Link, case: &Case) -> Result<f64> {
    let (work, count, window) = match case.measure {
        Measure::HalfRoundTrip => ("pingpong", ROUND_TRIPS, 1),
        Measure::Throughput => ("stream", (RUN_BYTES / case.size).min(RUN_MESSAGES_MAX), WINDOW),
    };
    let mut command = shell.program(program);
    command.args([link.argument, work]);
    command.args([case.size, count, window].map(|number| number.to_string()));
    let said = shell.read(command)?;
    let taken: f64 = said.trim().parse().with_context(|| format!("bench_socket says {said:?}"))?;
    Ok(match case.measure {
        Measure::HalfRoundTrip => taken / 1000.0,
        Measure::Throughput => (count * case.size) as f64 * 8e-9 / taken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_throughput_is_better_and_more_time_is_not() {
        let [_, one, many, system] = &LINKS;
        let [latency, short, .., long] = &CASES;
        assert!(latency.is_met(one, 1.3) && !latency.is_met(many, 1.4));
        assert!(short.is_met(one, 0.8) && !short.is_met(one, 0.7));
        assert!(!long.is_met(one, 0.9) && long.is_met(many, 0.5) && !long.is_met(many, 0.4));
        assert!(short.is_met(system, 0.7));
    }
}
