//! Measures how long a message of 8 bytes takes, beside a bare UDP datagram.

use anyhow::{Context, Result};

use super::{built, median, report};
use crate::bench::udp;
use crate::shell::Shell;

pub(super) const CASE: &str = "round-trip";

const RUNS: usize = 5;
const ROUND_TRIPS: usize = 20_000;
/// The most that a message may take, as a multiple of the datagram's time.
const BAR: f64 = 1.5;

pub(super) fn run(shell: &Shell) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar-cli --bin invar")?;
    let (mut bare, mut soft) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        bare.push(udp::half_round_trip_us(ROUND_TRIPS)?);
        let count = ROUND_TRIPS.to_string();
        let row = report(shell, &target_dir, 8, &["--window", "1", "-n", &count], &[])?;
        soft.push(row["latency_us"]["p50"].as_f64().context("no latency_us.p50")?);
    }
    let (bare, soft) = (median(&mut bare), median(&mut soft));
    println!("half a round trip of 8 bytes: udp {bare:.2} us, soft {soft:.2} us");
    let ratio = soft / bare;
    Ok((ratio > BAR).then(|| format!("{CASE} ({ratio:.2} of {BAR})")).into_iter().collect())
}
