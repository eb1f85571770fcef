//! Measures connections over two links of unequal rate between two namespaces, beside each of these links alone.

use std::path::Path;

use anyhow::{Result, anyhow};
use invar_testkit::namespaces::Hosts;

use super::namespaces::perf;
use super::{MIB, WINDOW, built, gbits, or_skip};
use crate::shell::Shell;

pub(super) const CASE: &str = "rails";

/// The rates of the two links in Mbit/s.
const RATES: [[u32; 2]; 3] = [[400, 100], [100, 400], [200, 200]];
/// The addresses of the second link.
const SECOND: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
/// The time of one run in seconds.
const SECONDS: usize = 10;

/// The part of both links' throughput that a connection over both must have.
const SUM_BAR: f64 = 0.9;

pub(super) fn run(shell: &Shell) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let invar = target_dir.join("release/invar");
    let mut missed = Vec::new();
    println!("over two links between namespaces, messages of 1 MiB, Gbit/s: each link alone, both");
    for rates in RATES {
        let Some(hosts) = or_skip(links(rates), CASE, &mut missed) else { return Ok(missed) };
        let alone = [
            measure(&hosts, &invar, "soft0", rates[0])?,
            measure(&hosts, &invar, "soft1", rates[1])?,
        ];
        let both = measure(&hosts, &invar, "soft0+soft1", rates[0] + rates[1])?;
        println!(
            "    {:4} and {:4} Mbit/s {:8.3} {:8.3} {both:8.3}",
            rates[0], rates[1], alone[0], alone[1]
        );
        missed.extend(misses(rates, alone, both));
    }
    Ok(missed)
}

/// Two namespaces with two links, which pass so many Mbit/s each way.
fn links(rates: [u32; 2]) -> Result<Hosts, String> {
    let hosts = Hosts::new(1500)?;
    hosts.add_cable("v1", 1500, SECOND)?;
    for host in 0..2 {
        for (link, rate) in rates.iter().enumerate() {
            let limit = format!("tbf rate {rate}mbit burst 128k latency 20ms");
            hosts.tc(host, &format!("qdisc add dev v{link} root {limit}"))?;
        }
    }
    Ok(hosts)
}

/// The throughput over a device, whose links pass `rate` Mbit/s together.
fn measure(hosts: &Hosts, invar: &Path, device: &str, rate: u32) -> Result<f64> {
    let messages = rate as usize * 1_000_000 / 8 * SECONDS / MIB;
    let row = perf(hosts, invar, "soft", MIB, messages, WINDOW, &["--nic", device])?;
    gbits(&row).map_err(|error| anyhow!("{device}: {error}"))
}

/// The bars that a connection over both links misses.
fn misses(rates: [u32; 2], alone: [f64; 2], both: f64) -> Vec<String> {
    let name = format!("{CASE} at {} and {} Mbit/s", rates[0], rates[1]);
    let (sum, faster) = (alone[0] + alone[1], alone[0].max(alone[1]));
    let mut missed = Vec::new();
    if both < SUM_BAR * sum {
        missed.push(format!("{name} ({:.2} of {SUM_BAR} of their sum)", both / sum));
    }
    if both < faster {
        missed.push(format!("{name} ({:.2} of the faster one)", both / faster));
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_links_are_held_against_their_sum_and_the_faster_one() {
        assert!(misses([400, 100], [0.38, 0.1], 0.44).is_empty());
        let missed = misses([400, 100], [0.38, 0.1], 0.36);
        assert_eq!(missed[0], "rails at 400 and 100 Mbit/s (0.75 of 0.9 of their sum)");
        assert_eq!(missed[1], "rails at 400 and 100 Mbit/s (0.95 of the faster one)");
    }
}
