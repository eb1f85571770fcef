//! Measures throughput and round trips between two namespaces where the receiving host loses packets at
//! random, in one direction. It loses whole trains, since its kernel has not yet cut them into packets.

use anyhow::{Context, Result};
use invar_testkit::namespaces::Hosts;

use super::namespaces::perf;
use super::{MIB, WINDOW, built, gbits, median, or_skip};
use crate::shell::Shell;

pub(super) const CASE: &str = "lossy";

const RUNS: usize = 5;
const MESSAGES: usize = 1000;
const SHORT_BYTES: usize = 64;
const SHORT_MESSAGES: usize = 10_000;
const MTUS: [u32; 2] = [1500, 9000];
const LOSSES_PER_MILLE: [u32; 3] = [0, 10, 50];

/// The share of the throughput without loss that must remain at the highest loss.
const THROUGHPUT_BAR: f64 = 0.5;
/// At the highest loss, 99 of 100 messages take at most so many median round trips without loss.
const ROUND_TRIPS_BAR: f64 = 10.0;

/// The medians at one rate of loss.
struct Measured {
    soft_gbits: f64,
    socket_gbits: f64,
    /// Half a round trip.
    p50_us: f64,
    p99_us: f64,
}

pub(super) fn run(shell: &Shell) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let invar = target_dir.join("release/invar");
    let mut missed = Vec::new();
    println!(
        "of the packets to one of two namespaces, so many lost by trains: Gbit/s of messages of"
    );
    println!("1 MiB over the software NIC and TCP; us of half a round trip of 64 B, p50 and p99");
    for mtu in MTUS {
        let mut rows = Vec::new();
        for per_mille in LOSSES_PER_MILLE {
            let made = Hosts::new(mtu).and_then(|hosts| hosts.lose(0, per_mille).map(|()| hosts));
            let Some(hosts) = or_skip(made, CASE, &mut missed) else { return Ok(missed) };
            let row = measure(&hosts, &invar)?;
            let Measured { soft_gbits, socket_gbits, p50_us, p99_us } = row;
            println!(
                "    MTU {mtu} {:4.1} % {soft_gbits:8.2} {socket_gbits:8.2} {p50_us:8.1} {p99_us:8.1}",
                f64::from(per_mille) / 10.0
            );
            rows.push(row);
        }
        missed.extend(misses(mtu, &rows));
    }
    Ok(missed)
}

fn measure(hosts: &Hosts, invar: &std::path::Path) -> Result<Measured> {
    let mut all = [const { Vec::new() }; 4];
    for _ in 0..RUNS {
        all[0].push(gbits(&perf(hosts, invar, "soft", MIB, MESSAGES, WINDOW, &[])?)?);
        all[1].push(gbits(&perf(hosts, invar, "socket", MIB, MESSAGES, WINDOW, &[])?)?);
        let row = perf(hosts, invar, "soft", SHORT_BYTES, SHORT_MESSAGES, 1, &[])?;
        let us = |name: &str| row["latency_us"][name].as_f64().context("no latency_us");
        all[2].push(us("p50")?);
        all[3].push(us("p99")?);
    }
    let [soft_gbits, socket_gbits, p50_us, p99_us] = all.map(|mut all| median(&mut all));
    Ok(Measured { soft_gbits, socket_gbits, p50_us, p99_us })
}

/// The missed bars. The first row was measured without loss, the last row with the most.
fn misses(mtu: u32, rows: &[Measured]) -> Vec<String> {
    let (Some(without), Some(with)) = (rows.first(), rows.last()) else { return Vec::new() };
    let rate = with.soft_gbits / without.soft_gbits;
    let round_trips = with.p99_us / (2.0 * without.p50_us);
    let mut missed = Vec::new();
    if rate < THROUGHPUT_BAR {
        missed.push(format!("{CASE} at MTU {mtu} ({rate:.2} of {THROUGHPUT_BAR})"));
    }
    if round_trips > ROUND_TRIPS_BAR {
        missed.push(format!("{CASE} at MTU {mtu} ({round_trips:.1} round trips)"));
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_loss_is_held_against_none() {
        let row =
            |soft_gbits, p50_us, p99_us| Measured { soft_gbits, socket_gbits: 1.0, p50_us, p99_us };
        let rows = |with| [row(30.0, 4.0, 9.0), row(29.0, 4.0, 500.0), with];
        assert!(misses(1500, &rows(row(15.0, 5.0, 80.0))).is_empty());
        assert_eq!(misses(1500, &rows(row(14.7, 5.0, 80.0))), ["lossy at MTU 1500 (0.49 of 0.5)"]);
        assert_eq!(
            misses(9000, &rows(row(15.0, 5.0, 88.0))),
            ["lossy at MTU 9000 (11.0 round trips)"]
        );
    }
}
