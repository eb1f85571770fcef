//! The table and the JSON of `invar perf`.

use std::net::IpAddr;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::load::Load;
use crate::failure::Failure;
use crate::output::Outputs;
use crate::size;

/// The values that all rows share.
#[derive(Serialize)]
pub(super) struct Header {
    pub(super) version: &'static str,
    pub(super) nic: String,
    pub(super) transport: String,
    pub(super) address: IpAddr,
    pub(super) peer_nic: String,
    /// The address of the peer's device.
    pub(super) peer: IpAddr,
    pub(super) peer_transport: String,
    /// Payload bytes of a packet; `None` over TCP, which also has no queue pairs.
    pub(super) path_mtu: Option<u32>,
    pub(super) qps: Option<u16>,
    pub(super) recvs: u16,
    pub(super) window: u16,
    pub(super) adaptive_routing: bool,
    pub(super) check: bool,
    /// The cores that other work kept busy before the run.
    pub(super) load: Option<Load>,
}

/// The results of one size.
#[derive(Serialize)]
pub(super) struct Row {
    size: u32,
    iters: u64,
    /// Microseconds of one message.
    time_us: f64,
    pub(super) algbw_gbytes_per_s: f64,
    msgs_per_s: f64,
    /// How many bytes were wrong.
    pub(super) wrong: u64,
    pub(super) latency_us: Latency,
}

/// Half round trips, in microseconds.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Latency {
    pub(super) p50: f64,
    p99: f64,
    #[serde(skip)]
    pub(super) min: f64,
}

impl Row {
    pub(super) fn new(
        size: u32,
        iters: u64,
        elapsed: Duration,
        wrong: u64,
        latency_us: Latency,
    ) -> Self {
        let time_s = elapsed.as_secs_f64().max(1e-9) / iters as f64;
        Row {
            size,
            iters,
            time_us: time_s * 1e6,
            algbw_gbytes_per_s: f64::from(size) / time_s / 1e9,
            msgs_per_s: 1.0 / time_s,
            wrong,
            latency_us,
        }
    }
}

impl Latency {
    /// Summarizes one or more values, which this sorts.
    pub(super) fn new(half_ns: &mut [u64]) -> Self {
        half_ns.sort_unstable();
        // The nearest rank is the least value that so many percent do not exceed.
        let percentile = |percent: usize| {
            let rank = (half_ns.len() * percent).div_ceil(100).max(1);
            half_ns.get(rank - 1).map_or(0.0, |ns| *ns as f64 / 1000.0)
        };
        Latency { p50: percentile(50), p99: percentile(99), min: percentile(0) }
    }
}

/// Prints each result as soon as it is there.
pub(super) struct Report {
    outputs: Outputs,
    header: Option<Header>,
    rows: Vec<Row>,
    /// The progress indicator, which shows on a terminal only.
    bar: ProgressBar,
}

/// The JSON document.
#[derive(Serialize)]
struct Content<'a> {
    #[serde(flatten)]
    header: &'a Header,
    rows: &'a [Row],
}

impl Report {
    pub(super) fn new(outputs: Outputs) -> Self {
        Report { outputs, header: None, rows: Vec::new(), bar: ProgressBar::hidden() }
    }

    /// Prints the head of the table; rows follow.
    pub(super) fn head(&mut self, header: Header, rows: usize) -> Result<(), Failure> {
        let is_silent = self.outputs.is_silent();
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
        self.bar = ProgressBar::new(rows as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        if is_silent {
            self.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let text = head(&header);
        self.header = Some(header);
        self.print(&text)
    }

    /// Shows the current step.
    pub(super) fn begin(&self, size: u32, what: &str) {
        self.bar.set_message(format!("{} {what}", size::show(size)));
    }

    pub(super) fn row(&mut self, row: Row) -> Result<(), Failure> {
        let line = line(&row);
        self.rows.push(row);
        self.print(&line)?;
        self.bar.inc(1);
        Ok(())
    }

    /// Ends the progress indicator; writes the JSON if there is a whole result.
    pub(super) fn finish(mut self, is_whole: bool) -> Result<(Option<Header>, Vec<Row>), Failure> {
        self.bar.finish_and_clear();
        if let (Some(header), true) = (&self.header, is_whole) {
            self.outputs.json(&Content { header, rows: &self.rows })?;
        }
        Ok((self.header, self.rows))
    }

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        let outputs = &mut self.outputs;
        self.bar.suspend(|| outputs.line(text))
    }
}

fn head(header: &Header) -> String {
    let Header { version, nic, transport, address, peer_nic, peer, path_mtu, .. } = header;
    let Header { peer_transport, .. } = header;
    let Header { qps, recvs, window, adaptive_routing, check, load, .. } = header;
    let onoff = |on: &bool| if *on { "on" } else { "off" };
    let path_mtu = path_mtu.map_or(String::new(), |bytes| format!(", path MTU {bytes}"));
    let unlike = match transport == peer_transport {
        true => String::new(),
        false => format!(" to {peer_transport}"),
    };
    let qps = qps.map_or(String::new(), |qps| format!("qps {qps}, "));
    let load = load.as_ref().map_or(String::new(), Load::lines);
    format!(
        "# invar perf {version}: {nic} ({address}) to {peer_nic} ({peer})\n\
         # transport {transport}{unlike}{path_mtu}, {qps}recvs {recvs}, window {window}\n\
         # adaptive routing {}, check {}\n\
         {load}\
         # time: average of a message, with up to {window} on their way\n\
         # p50, p99: half a round trip, with one message on its way\n\
         #{:>9} {:>9} {:>11} {:>8} {:>10} {:>9} {:>9} {:>7}\n\
         #{:>9} {:>9} {:>11} {:>8} {:>10} {:>9} {:>9} {:>7}",
        onoff(adaptive_routing),
        onoff(check),
        "size",
        "iters",
        "time",
        "algbw",
        "msg/s",
        "p50",
        "p99",
        "#wrong",
        "(B)",
        "",
        "(us)",
        "(GB/s)",
        "",
        "(us)",
        "(us)",
        "(B)",
    )
}

fn line(row: &Row) -> String {
    let Row { size, iters, time_us, algbw_gbytes_per_s, msgs_per_s, wrong, latency_us } = row;
    let Latency { p50, p99, .. } = latency_us;
    format!(
        " {size:>9} {iters:>9} {time_us:>11.2} {algbw_gbytes_per_s:>8.3} {msgs_per_s:>10.0} \
         {p50:>9.2} {p99:>9.2} {wrong:>7}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let mut values: Vec<u64> = (1..=1000).rev().map(|us| us * 1000).collect();
        let latency = Latency::new(&mut values);
        assert_eq!((latency.p50, latency.p99), (500.0, 990.0));
        let latency = Latency::new(&mut [7000]);
        assert_eq!((latency.p50, latency.p99), (7.0, 7.0));
    }

    #[test]
    fn a_row_is_of_one_message() {
        let latency = Latency { p50: 1.0, p99: 2.0, min: 0.5 };
        let row = Row::new(1 << 20, 1000, Duration::from_millis(500), 3, latency);
        assert_eq!((row.time_us, row.msgs_per_s), (500.0, 2000.0));
        assert!((row.algbw_gbytes_per_s - 2.097_152).abs() < 1e-9);
        let json = serde_json::to_string(&row).unwrap();
        assert!(json.starts_with(r#"{"size":1048576,"iters":1000,"time_us":500.0,"algbw_gbytes"#));
        assert!(json.ends_with(r#""wrong":3,"latency_us":{"p50":1.0,"p99":2.0}}"#), "{json}");
    }
}
