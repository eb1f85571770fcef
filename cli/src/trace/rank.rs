//! The operations of a rank of a communicator, as spans.

use invar_core::recorder::{RankOperation, RankRecord, RankWait};
use serde_json::json;

use super::{Span, SpanKind, TraceRow};

/// Returns a rank's operations, and in each the longest wait for another rank.
pub(super) fn row(record: &RankRecord, number: usize, us: &impl Fn(u64) -> f64) -> TraceRow {
    let name = format!("rank {} of {}", record.rank, record.nranks);
    let mut spans = Vec::new();
    for operation in &record.operations {
        let RankOperation { number, begun_ns, took_ns, bytes, text, waited_us, longest } =
            operation;
        let ts = us(*begun_ns);
        // An operation that runs lasts until the last look.
        let end_ns = took_ns.map_or(record.looked_ns, |took_ns| begun_ns.saturating_add(took_ns));
        let dur = (us(end_ns) - ts).max(0.0);
        let args = json!({
            "number": number, "bytes": bytes, "waited ms": f64::from(*waited_us) / 1e3,
            "is done": took_ns.is_some(),
        });
        let name = text.as_str().to_owned();
        spans.push(Span { kind: SpanKind::Operation, name, ts, dur, args });
        if let Some(RankWait { rank, after_us, lasted_us }) = longest {
            let after = f64::from(*after_us).min(dur);
            let dur = f64::from(*lasted_us).min(dur - after);
            let (name, ts) = (format!("waits for rank {rank}"), ts + after);
            spans.push(Span { kind: SpanKind::Wait, name, ts, dur, args: json!({}) });
        }
    }
    let (title, events, verdict) = (name.clone(), Vec::new(), String::new());
    TraceRow { number, name, title, spans, lanes: Vec::new(), events, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_a_span_with_its_longest_wait_inside() {
        let mut done = RankOperation {
            number: 4,
            begun_ns: 2_000_000,
            took_ns: Some(3_000_000),
            bytes: 4000,
            waited_us: 1500,
            longest: Some(RankWait { rank: 2, after_us: 500, lasted_us: 1000 }),
            ..RankOperation::default()
        };
        done.describe("all_reduce");
        let mut runs = RankOperation { begun_ns: 6_000_000, took_ns: None, ..done.clone() };
        runs.describe("broadcast");
        let record = RankRecord {
            rank: 1,
            nranks: 4,
            looked_ns: 9_000_000,
            operations: [done, runs].into_iter().collect(),
            ..RankRecord::default()
        };
        let TraceRow { name, spans, .. } = row(&record, 3, &|at_ns| at_ns as f64 / 1e3);
        let span = |at: usize| {
            let Span { name, ts, dur, .. } = &spans[at];
            (name.as_str(), *ts, *dur)
        };
        assert_eq!(span(0), ("all_reduce", 2000.0, 3000.0));
        assert_eq!(span(1), ("waits for rank 2", 2500.0, 1000.0));
        assert_eq!(span(2), ("broadcast", 6000.0, 3000.0));
        assert_eq!(spans[2].args["is done"], false);
        assert_eq!(name, "rank 1 of 4");
    }
}
