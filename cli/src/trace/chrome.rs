//! The trace in Chrome's format, which Perfetto reads too.

use invar_core::recorder::{EventKind, MESSAGES};
use serde_json::{Value, json};

use super::{Span, TraceRow, TracedProcess};

/// The most rows of a connection in a viewer: its own, and the lanes of its messages, each of which has a message.
const ROWS: usize = 1 + MESSAGES;
/// The row of a record has the record's number. The numbers of its lanes lie so far apart, and no process has as many
/// records.
const LANE_STEP: usize = 1 << 16;

/// Returns the trace of all processes: spans, messages, a counter for the messages of each connection, and marks.
pub(super) fn trace(all: &[TracedProcess]) -> Value {
    let mut events = Vec::new();
    // Processes of different hosts may have one number.
    for (pid, TracedProcess { name, clock, rows }) in all.iter().enumerate() {
        let args = json!({"name": name});
        events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": args}));
        let args = json!({"labels": clock});
        events.push(json!({"ph": "M", "name": "process_labels", "pid": pid, "args": args}));
        rows.iter().for_each(|row| push_row(&mut events, pid, row));
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}

/// Adds a row of a process, and below it the lanes of its messages.
fn push_row(events: &mut Vec<Value>, pid: usize, row: &TraceRow) {
    let (tid, place) = (row.number, row.number * ROWS);
    push_name(events, (pid, tid), place, &row.name);
    push_spans(events, (pid, tid), &row.spans);
    for (number, lane) in (1..).zip(&row.lanes) {
        let tid = tid + number * LANE_STEP;
        push_name(events, (pid, tid), place + number, &format!("messages of {}", row.title));
        push_spans(events, (pid, tid), lane);
    }
    for (ts, event) in &row.events {
        if is_mark(event.kind) {
            let args = match event.kind {
                EventKind::Stall => json!({"verdict": row.verdict}),
                _ => json!({}),
            };
            events.push(json!({
                "ph": "i", "s": "t", "name": event.to_string(), "pid": pid, "tid": tid, "ts": ts,
                "args": args,
            }));
        }
        let args = json!({"begun": event.begun, "done": event.done, "untested": event.untested});
        events.push(json!({
            "ph": "C", "name": format!("messages {tid}"), "pid": pid, "tid": tid, "ts": ts, "args": args,
        }));
    }
}

/// Names a row of a viewer, which shows rows in the order of their places.
fn push_name(events: &mut Vec<Value>, (pid, tid): (usize, usize), place: usize, name: &str) {
    let args = [
        ("thread_name", json!({"name": name})),
        ("thread_sort_index", json!({"sort_index": place})),
    ];
    for (kind, args) in args {
        events.push(json!({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}));
    }
}

fn push_spans(events: &mut Vec<Value>, (pid, tid): (usize, usize), spans: &[Span]) {
    for Span { name, ts, dur, args, .. } in spans {
        events.push(json!({
            "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
        }));
    }
}

/// Whether an event is neither a part of a span nor mere progress.
fn is_mark(kind: EventKind) -> bool {
    use EventKind::{Progress, Recovered, Recovery, Waits, WaitsNot};
    !matches!(kind, Waits | WaitsNot | Recovery | Recovered | Progress)
}
