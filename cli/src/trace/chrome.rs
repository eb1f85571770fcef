//! The trace in Chrome's format, which Perfetto reads too.

use invar_core::recorder::EventKind;
use serde_json::{Value, json};

use super::{Span, TracedProcess};

/// Returns the trace of all processes: spans, a counter for the messages of each connection, and marks.
pub(super) fn trace(all: &[TracedProcess]) -> Value {
    let mut events = Vec::new();
    // Processes of different hosts may have one number.
    for (pid, TracedProcess { name, clock, rows }) in all.iter().enumerate() {
        let args = json!({"name": name});
        events.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": args}));
        let args = json!({"labels": clock});
        events.push(json!({"ph": "M", "name": "process_labels", "pid": pid, "args": args}));
        for row in rows {
            let tid = row.number;
            let args = json!({"name": row.name});
            events.push(json!({
                "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args,
            }));
            for Span { name, ts, dur, args, .. } in &row.spans {
                events.push(json!({
                    "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
                }));
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
                let args =
                    json!({"begun": event.begun, "done": event.done, "untested": event.untested});
                events.push(json!({
                    "ph": "C", "name": format!("messages {tid}"), "pid": pid, "tid": tid, "ts": ts, "args": args,
                }));
            }
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}

/// Whether an event is neither a part of a span nor mere progress.
fn is_mark(kind: EventKind) -> bool {
    use EventKind::{Progress, Recovered, Recovery, Waits, WaitsNot};
    !matches!(kind, Waits | WaitsNot | Recovery | Recovered | Progress)
}
