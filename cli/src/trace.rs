//! `invar trace`: writes what connections and ranks did as a trace for Chrome and Perfetto, or draws it.

mod chrome;
mod clocks;
mod messages;
mod picture;
mod rank;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use invar_core::recorder::{Event, EventKind, Record};
use invar_core::stall::Role;
use invar_linux::recorder::Recorded;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::inspect::{find, open};
use clocks::{Correction, corrections, other_process};

/// Write what connections and ranks did as a trace for Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev), or
/// draw it.
///
/// Give the files of both ends, and both stand on one time line, also if the clocks of their hosts differ. Each
/// connection compares the clocks when it is made. Without a connection between them the hosts' clocks must agree
/// (NTP). The events of connections have a resolution of 50 ms. Of a rank of a communicator the trace has the last
/// operations that moved 64 KiB or more, or that waited for another rank.
///
/// If a process runs with INVAR_RECORDER=2, the trace has the last 40 messages of each of its connections too. Of a
/// link between ranks over TCP it has one direction. A message is a bar from the program's first call to the test
/// that finds the message done, with its size, tag and request. Messages that overlap are in different rows. A
/// picture has no messages.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of processes, or files
    #[arg(value_name = "PID|FILE", required = true)]
    processes: Vec<String>,
    /// File to write: a picture if its name ends with .svg, and otherwise a trace
    #[arg(short, long, default_value = "trace.json")]
    output: PathBuf,
}

/// A process on the time line. Times count from the first event of all processes, in microseconds.
struct TracedProcess {
    name: String,
    /// How the clock of the process was put on the time line.
    clock: String,
    rows: Vec<TraceRow>,
}

/// The spans and events of an end of a connection, or of a rank.
struct TraceRow {
    /// The number of the record in its process.
    number: usize,
    name: String,
    /// A short name, for a picture.
    title: String,
    spans: Vec<Span>,
    /// The messages of a connection. Bars of one lane do not overlap. Pictures leave them out.
    lanes: Vec<Vec<Span>>,
    /// The events of a connection, with their times.
    events: Vec<(f64, Event)>,
    /// The last verdict on a stall; empty if there was none.
    verdict: String,
}

/// Something that lasts.
struct Span {
    kind: SpanKind,
    name: String,
    ts: f64,
    dur: f64,
    /// An object with details.
    args: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpanKind {
    Operation,
    Wait,
    Recovery,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let read = |process: &String| open(&find(process)?);
    let all = args.processes.iter().map(read).collect::<Result<Vec<Recorded>, Failure>>()?;
    let all = traced(&all);
    let is_picture = args.output.extension().is_some_and(|of| of.eq_ignore_ascii_case("svg"));
    let text = match is_picture {
        true => picture::svg(&all).map_err(Failure::new)?,
        false => chrome::trace(&all).to_string(),
    };
    fs::write(&args.output, text)
        .map_err(|error| Failure::unwritten(&args.output.display().to_string(), &error))?;
    Ok(ExitCode::SUCCESS)
}

/// Puts all processes on one time line.
fn traced(all: &[Recorded]) -> Vec<TracedProcess> {
    let corrections = corrections(all);
    let times = all.iter().zip(&corrections).flat_map(|(of, correction)| {
        let events = of.records.iter().flat_map(|(_, record)| &record.events);
        let events = events.map(|event| event.at_ns);
        let messages = of.records.iter().flat_map(|(_, record)| &record.messages);
        let messages = messages.map(|message| message.asked_ns);
        let operations = of.ranks.iter().flat_map(|(_, rank)| &rank.operations);
        let operations = operations.map(|operation| operation.begun_ns);
        events.chain(messages).chain(operations).map(|at_ns| time_ns(of, correction, at_ns))
    });
    let start_ns = times.min().unwrap_or(0);
    let process = |(recorded, correction): (&Recorded, &Correction)| {
        let us =
            |at_ns: u64| (time_ns(recorded, correction, at_ns).wrapping_sub(start_ns)) as f64 / 1e3;
        let connection = |(number, record): &(usize, Record)| {
            let other = other_process(all, recorded, record).map(|at| all[at].header.process.pid);
            connection(record, *number, other, &us)
        };
        let ranks = recorded.ranks.iter().map(|(number, rank)| rank::row(rank, *number, &us));
        let rows = ranks.chain(recorded.records.iter().map(connection)).collect();
        let name = recorded.header.process.to_string();
        TracedProcess { name, clock: label(correction), rows }
    };
    all.iter().zip(&corrections).map(process).collect()
}

fn time_ns(recorded: &Recorded, correction: &Correction, at_ns: u64) -> i64 {
    let unix_ns = recorded.header.unix_offset_ns.wrapping_add(at_ns as i64);
    unix_ns.wrapping_add(correction.add_ns)
}

/// Says how a process' clock was put on the time line.
fn label(Correction { add_ns, uncertainty_ns }: &Correction) -> String {
    let ms = |ns: f64| ns / 1e6;
    match uncertainty_ns {
        None => "clock of its host".to_owned(),
        Some(within_ns) => {
            let (add, within) = (ms(*add_ns as f64), ms(*within_ns as f64));
            format!("clock {add:+.3} ms, within {within:.3} ms")
        }
    }
}

/// Returns the events of a connection's end, and spans for its waits and recoveries. `other` is the process that has
/// the other end.
fn connection(
    record: &Record,
    number: usize,
    other: Option<u32>,
    us: &impl Fn(u64) -> f64,
) -> TraceRow {
    // The keeper looks also while nothing happens, so a wait that is open lasts until its last look.
    let last_ns = record.events.back().map_or(0, |event| event.at_ns).max(record.looked_ns);
    let span = |(at, event): (usize, &Event)| {
        let (kind, end) = match event.kind {
            EventKind::Waits => (SpanKind::Wait, EventKind::WaitsNot),
            EventKind::Recovery => (SpanKind::Recovery, EventKind::Recovered),
            _ => return None,
        };
        let ended = record.events.iter().skip(at).find(|event| event.kind == end);
        let ts = us(event.at_ns);
        let dur = (us(ended.map_or(last_ns, |event| event.at_ns)) - ts).max(0.0);
        Some(Span { kind, name: event.to_string(), ts, dur, args: json!({}) })
    };
    let role = if record.role == Role::Sender { "sender" } else { "receiver" };
    let other = other.map_or_else(|| record.peer.to_string(), |pid| format!("pid {pid}"));
    TraceRow {
        number,
        name: format!("{role}: {}", record.ends),
        title: format!("{role} {number}, {} to {other}", record.device),
        spans: record.events.iter().enumerate().filter_map(span).collect(),
        lanes: messages::lanes(record, us),
        events: record.events.iter().map(|event| (us(event.at_ns), *event)).collect(),
        verdict: record.verdict.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use invar_core::metrics::MemoryNumbers;
    use invar_core::peer_clock::PeerClock;
    use invar_core::recorder::{Header, MessageTimes};
    use invar_core::stall::{EndView, Process};

    use super::*;

    fn trace(all: &[Recorded]) -> Value {
        chrome::trace(&traced(all))
    }

    fn view(is_waiting: bool, begun: u64) -> EndView {
        EndView { process: Process::new(7, "a"), is_waiting, begun, ..EndView::default() }
    }

    /// A process whose clock began at `unix_offset_ns`.
    fn recorded(role: Role, unix_offset_ns: i64) -> Recorded {
        let mut record = Record::new(role, 1, "ends", view(false, 0), 1_000_000);
        record.look(view(true, 1), 2_000_000);
        record.stall("the verdict", 3_000_000);
        record.look(view(false, 1), 4_000_000);
        let header = Header {
            process: Process::new(7, "a"),
            unix_offset_ns,
            memory: MemoryNumbers::default(),
        };
        let path = PathBuf::new();
        let (records, ranks) = (vec![(0, record)], Vec::new());
        Recorded { path, user: 0, header, is_alive: false, records, ranks, damaged: 0 }
    }

    #[test]
    fn both_ends_are_on_one_time_line_and_waits_are_spans() {
        let trace = trace(&[recorded(Role::Sender, 0), recorded(Role::Receiver, 500_000)]);
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<_> = events.iter().filter(|event| event["ph"] == "X").collect();
        let span = |at: usize| {
            (spans[at]["pid"].as_u64(), spans[at]["ts"].as_f64(), spans[at]["dur"].as_f64())
        };
        assert_eq!(span(0), (Some(0), Some(1000.0), Some(2000.0)));
        assert_eq!(span(1), (Some(1), Some(1500.0), Some(2000.0)));
        let stall = events.iter().find(|event| event["name"] == "stall reported").unwrap();
        assert_eq!(stall["args"]["verdict"], "the verdict");
    }

    #[test]
    fn a_peers_events_move_to_the_clock_of_the_end_that_called() {
        let mut sender = recorded(Role::Sender, 0);
        let mut receiver = recorded(Role::Receiver, 60_000_000_000);
        sender.records[0].1.number = 9;
        sender.records[0].1.peer_clock =
            Some(PeerClock { ahead_ns: -250_000, uncertainty_ns: 1_000 });
        receiver.records[0].1.number = 9;
        let trace = trace(&[sender, receiver]);
        let events = trace["traceEvents"].as_array().unwrap();
        let waits = events.iter().filter(|event| event["ph"] == "X");
        let at: Vec<_> = waits.map(|event| event["ts"].as_f64().unwrap()).collect();
        // Both began to wait 1 ms after the first event, each on its own clock. The receiver's is behind.
        assert_eq!(at, [1000.0, 1250.0]);
        let labels = events.iter().filter(|event| event["name"] == "process_labels");
        let labels: Vec<_> =
            labels.map(|event| event["args"]["labels"].as_str().unwrap()).collect();
        let moved = "clock -59999.750 ms, within 0.001 ms";
        assert_eq!(labels, ["clock +0.000 ms, within 0.000 ms", moved]);
    }

    #[test]
    fn each_lane_of_messages_is_a_row_below_its_connection_and_no_messages_are_none() {
        let plain = recorded(Role::Sender, 0);
        let mut timed = recorded(Role::Receiver, 0);
        let posted =
            |asked_ns| MessageTimes { asked_ns, posted_ns: asked_ns, ..Default::default() };
        timed.records[0].1.note_messages(&[500_000, 600_000].map(posted));
        let trace = trace(&[plain, timed]);
        let events = trace["traceEvents"].as_array().unwrap();
        let bars = events.iter().filter(|of| of["name"] == "receive of 0 bytes");
        let bars: Vec<_> = bars.map(|of| (of["pid"].as_u64(), of["ts"].as_f64())).collect();
        // The first message begins before the first event.
        assert_eq!(bars, [(Some(1), Some(0.0)), (Some(1), Some(100.0))]);
        let rows = |pid: u64| {
            let of_pid = move |of: &&Value| of["pid"] == pid && of["name"] == "thread_sort_index";
            let row = |of: &Value| (of["args"]["sort_index"].as_u64(), of["tid"].as_u64());
            let mut rows: Vec<_> = events.iter().filter(of_pid).map(row).collect();
            rows.sort_unstable();
            rows.into_iter().map(|(_, tid)| tid).collect::<Vec<_>>()
        };
        assert_eq!((rows(0).len(), rows(1).len()), (1, 3));
        let tid_of = |ts: f64| {
            events.iter().find(|of| of["ts"] == ts && of["ph"] == "X").map(|of| of["tid"].as_u64())
        };
        assert_eq!(rows(1)[1..], [tid_of(0.0).unwrap(), tid_of(100.0).unwrap()]);
    }

    #[test]
    fn a_wait_that_is_open_lasts_until_the_last_look() {
        let mut recorded = recorded(Role::Sender, 0);
        recorded.records[0].1.look(view(true, 1), 5_000_000);
        recorded.records[0].1.look(view(true, 1), 9_000_000);
        let trace = trace(&[recorded]);
        let events = trace["traceEvents"].as_array().unwrap();
        let last = events.iter().rfind(|event| event["ph"] == "X").unwrap();
        assert_eq!((last["ts"].as_f64(), last["dur"].as_f64()), (Some(4000.0), Some(4000.0)));
    }
}
