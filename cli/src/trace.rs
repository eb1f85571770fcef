//! `invar trace`: writes what connections and ranks did as a trace for Chrome and Perfetto.

mod clocks;
mod rank;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use invar_core::recorder::{EventKind, Record};
use invar_core::stall::Role;
use invar_linux::recorder::Recorded;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::inspect::{find, open};
use clocks::{Correction, corrections};

/// Write what connections and ranks did as a trace for Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev).
///
/// Give the files of both ends, and both stand on one time line, also if the clocks of their hosts differ. Each
/// connection compares the clocks when it is made. Without a connection between them the hosts' clocks must agree
/// (NTP). The events of connections have a resolution of 50 ms. Of a rank of a communicator the trace has the last
/// operations that moved 64 KiB or more, or that waited for another rank.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of processes, or files
    #[arg(value_name = "PID|FILE", required = true)]
    processes: Vec<String>,
    /// File to write
    #[arg(short, long, default_value = "trace.json")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let read = |process: &String| open(&find(process)?);
    let all = args.processes.iter().map(read).collect::<Result<Vec<Recorded>, Failure>>()?;
    let text = trace(&all).to_string();
    fs::write(&args.output, text)
        .map_err(|error| Failure::unwritten(&args.output.display().to_string(), &error))?;
    Ok(ExitCode::SUCCESS)
}

/// The trace of all processes. Times count from the first event, in microseconds.
fn trace(all: &[Recorded]) -> Value {
    let corrections = corrections(all);
    let times = all.iter().zip(&corrections).flat_map(|(of, correction)| {
        let events = of.records.iter().flat_map(|(_, record)| &record.events);
        let events = events.map(|event| event.at_ns);
        let operations = of.ranks.iter().flat_map(|(_, rank)| &rank.operations);
        let operations = operations.map(|operation| operation.begun_ns);
        events.chain(operations).map(|at_ns| time_ns(of, correction, at_ns))
    });
    let start_ns = times.min().unwrap_or(0);
    let mut events = Vec::new();
    // Processes of different hosts may have one number.
    for (pid, (recorded, correction)) in all.iter().zip(&corrections).enumerate() {
        let args = json!({"name": recorded.header.process.to_string()});
        events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": args}));
        let args = json!({"labels": label(correction)});
        events.push(json!({"ph": "M", "name": "process_labels", "pid": pid, "args": args}));
        let us =
            |at_ns: u64| (time_ns(recorded, correction, at_ns).wrapping_sub(start_ns)) as f64 / 1e3;
        for (tid, record) in &recorded.records {
            let role = if record.role == Role::Sender { "sender" } else { "receiver" };
            events.push(thread_name((pid, *tid), &format!("{role}: {}", record.ends)));
            of_record(record, &us, (pid, *tid), &mut events);
        }
        for (tid, rank) in &recorded.ranks {
            rank::operations(rank, &us, (pid, *tid), &mut events);
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}

fn time_ns(recorded: &Recorded, correction: &Correction, at_ns: u64) -> i64 {
    let unix_ns = recorded.header.unix_offset_ns.wrapping_add(at_ns as i64);
    unix_ns.wrapping_add(correction.add_ns)
}

/// Names a line of a process.
fn thread_name((pid, tid): (usize, usize), name: &str) -> Value {
    json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
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

/// Adds a record's events: spans for waits and recoveries, a counter for messages, and marks for the rest.
fn of_record(
    record: &Record,
    us: &impl Fn(u64) -> f64,
    (pid, tid): (usize, usize),
    events: &mut Vec<Value>,
) {
    // The keeper looks also while nothing happens, so a wait that is open lasts until its last look.
    let last_ns = record.events.back().map_or(0, |event| event.at_ns).max(record.looked_ns);
    let until = |from: usize, end: EventKind| {
        let mut later = record.events.iter().skip(from);
        us(later.find(|event| event.kind == end).map_or(last_ns, |event| event.at_ns))
    };
    for (at, event) in record.events.iter().enumerate() {
        let ts = us(event.at_ns);
        let span = match event.kind {
            EventKind::Waits => Some(EventKind::WaitsNot),
            EventKind::Recovery => Some(EventKind::Recovered),
            _ => None,
        };
        let name = event.to_string();
        match (span, event.kind) {
            (Some(end), _) => {
                let dur = (until(at, end) - ts).max(0.0);
                events.push(
                    json!({"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}),
                );
            }
            (None, EventKind::WaitsNot | EventKind::Recovered | EventKind::Progress) => {}
            (None, EventKind::Stall) => {
                let args = json!({"verdict": record.verdict.as_str()});
                events.push(json!({
                    "ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": ts, "args": args,
                }));
            }
            (None, _) => events
                .push(json!({"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": ts})),
        }
        let args = json!({"begun": event.begun, "done": event.done, "untested": event.untested});
        events.push(json!({
            "ph": "C", "name": format!("messages {tid}"), "pid": pid, "tid": tid, "ts": ts, "args": args,
        }));
    }
}

#[cfg(test)]
mod tests {
    use invar_core::metrics::MemoryNumbers;
    use invar_core::peer_clock::PeerClock;
    use invar_core::recorder::Header;
    use invar_core::stall::{EndView, Process};

    use super::*;

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
        Recorded { path, header, is_alive: false, records, ranks, damaged: 0 }
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
