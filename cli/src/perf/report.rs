//! The table and the JSON of `invar perf`.

use std::net::IpAddr;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::latency::Latency;
use super::load::Load;
use super::operation::Op;
use super::usage::Used;
use crate::failure::Failure;
use crate::output::Outputs;
use crate::size;

/// The values that all rows share.
#[derive(Serialize)]
pub(super) struct Header {
    pub(super) version: &'static str,
    /// The operation that was measured.
    pub(super) op: Op,
    pub(super) nic: String,
    pub(super) transport: String,
    pub(super) address: IpAddr,
    pub(super) peer_nic: String,
    /// The address of the peer's device.
    pub(super) peer: IpAddr,
    pub(super) peer_transport: String,
    /// Payload bytes of a packet; `None` over TCP, which also has no queue pairs.
    pub(super) path_mtu: Option<usize>,
    pub(super) qps: Option<u16>,
    pub(super) recvs: u16,
    pub(super) window: u16,
    pub(super) adaptive_routing: bool,
    pub(super) check: bool,
    /// Whether the timed messages went both ways at once.
    pub(super) bidirectional: bool,
    /// The cores that other work kept busy before the run; `None` if there were none, or the kernel does not tell.
    pub(super) load: Option<Load>,
}

/// The results of one size.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) size: u32,
    iters: u64,
    /// Microseconds of one message.
    time_us: f64,
    pub(super) algbw_gbytes_per_s: f64,
    msgs_per_s: f64,
    /// Processor time of each end's process in percent; `None` if a server does not tell.
    cpu_percent: f64,
    peer_cpu_percent: Option<f64>,
    /// How many bytes were wrong.
    pub(super) wrong: u64,
    pub(super) latency_us: Latency,
}

impl Row {
    /// `used` is what the timed messages took: so many each way, and one way or two.
    pub(super) fn new(
        size: u32,
        [iters, ways]: [u64; 2],
        used: Used,
        peer_cpu_percent: Option<f64>,
        wrong: u64,
        latency_us: Latency,
    ) -> Self {
        let time_s = used.elapsed.as_secs_f64().max(1e-9) / iters as f64;
        Row {
            size,
            iters,
            time_us: time_s * 1e6,
            algbw_gbytes_per_s: ways as f64 * f64::from(size) / time_s / 1e9,
            msgs_per_s: ways as f64 / time_s,
            cpu_percent: used.percent(),
            peer_cpu_percent,
            wrong,
            latency_us,
        }
    }
}

/// Prints each result as soon as it is there.
pub(super) struct Report {
    outputs: Outputs,
    header: Option<Header>,
    rows: Vec<Row>,
    /// Whether to print the distribution of each row's half round trips.
    histogram: bool,
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
    pub(super) fn new(outputs: Outputs, histogram: bool) -> Self {
        Report { outputs, header: None, rows: Vec::new(), histogram, bar: ProgressBar::hidden() }
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
            if self.histogram {
                for row in &self.rows {
                    let lines = row.latency_us.lines(&size::show(row.size), header.op);
                    self.outputs.line(&lines)?;
                }
            }
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
    let Header { peer_transport, op, .. } = header;
    let how = match op {
        Op::Message => {
            format!("recvs {recvs}, window {window}", recvs = header.recvs, window = header.window)
        }
        op => format!("op {}, window {}", op.name(), header.window),
    };
    let latency = op.latency_is_of();
    let Header { qps, window, adaptive_routing, check, bidirectional, load, .. } = header;
    let (each, both) = match bidirectional {
        true => (" each way", "# algbw, msg/s: of both ways together\n"),
        false => ("", ""),
    };
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
         # transport {transport}{unlike}{path_mtu}, {qps}{how}\n\
         # adaptive routing {}, check {}\n\
         {load}\
         # time: average of a message, with up to {window} on their way{each}\n\
         {both}\
         # p50, p99: {latency}, with one message on its way\n\
         # cpu: processor time of this end's process during the timed messages\n\
         #{}\n#{}",
        onoff(adaptive_routing),
        onoff(check),
        columns(["size", "iters", "time", "algbw", "msg/s", "p50", "p99", "cpu", "#wrong"]),
        columns(["(B)", "", "(us)", "(GB/s)", "", "(us)", "(us)", "(%)", "(B)"]),
    )
}

fn line(row: &Row) -> String {
    let cells = [
        row.size.to_string(),
        row.iters.to_string(),
        format!("{:.2}", row.time_us),
        format!("{:.3}", row.algbw_gbytes_per_s),
        format!("{:.0}", row.msgs_per_s),
        format!("{:.2}", row.latency_us.p50),
        format!("{:.2}", row.latency_us.p99),
        format!("{:.0}", row.cpu_percent),
        row.wrong.to_string(),
    ];
    format!(" {}", columns(cells.each_ref().map(String::as_str)))
}

fn columns(cells: [&str; 9]) -> String {
    let widths = [9, 8, 11, 8, 9, 8, 8, 4, 6];
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
    padded.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::latency::Recorder;
    use super::*;

    #[test]
    fn a_row_is_of_one_message() {
        let used =
            Used { elapsed: Duration::from_millis(500), processor: Duration::from_millis(250) };
        let mut recorder = Recorder::new();
        recorder.record(Duration::from_micros(1));
        let row = Row::new(1 << 20, [1000, 1], used, Some(99.0), 3, recorder.latency());
        assert_eq!((row.time_us, row.msgs_per_s), (500.0, 2000.0));
        assert!((row.algbw_gbytes_per_s - 2.097_152).abs() < 1e-9);
        let json = serde_json::to_string(&row).unwrap();
        assert!(json.starts_with(r#"{"size":1048576,"iters":1000,"time_us":500.0,"algbw_gbytes"#));
        let text = r#""cpu_percent":50.0,"peer_cpu_percent":99.0,"wrong":3,"latency_us":{"p50":1"#;
        assert!(json.contains(text), "{json}");
        assert_eq!(line(&row).len(), 80, "{}", line(&row));
    }
}
