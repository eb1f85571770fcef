//! The messages of a connection, as bars in lanes.

use invar_core::recorder::{MessageTimes, Record};
use invar_core::stall::Role;
use serde_json::json;

use super::{Span, SpanKind};
use crate::inspect::in_us;

/// A part of a bar ends this many microseconds before the bar does, so that no viewer takes it for longer than the
/// bar.
const GAP_US: f64 = 0.001;

/// The bars of a lane follow each other.
struct Lane {
    /// End of the last bar.
    end: f64,
    spans: Vec<Span>,
}

/// Returns a bar for each message of an end, from the program's first call to the test, in lanes. Messages that
/// overlap are in different lanes.
pub(super) fn lanes(record: &Record, us: &impl Fn(u64) -> f64) -> Vec<Vec<Span>> {
    let mut bars: Vec<Vec<Span>> =
        record.messages.iter().map(|message| bar(record, message, us)).collect();
    let start = |bar: &Vec<Span>| bar[0].ts;
    bars.sort_by(|one, other| start(one).total_cmp(&start(other)));
    let mut lanes: Vec<Lane> = Vec::new();
    for bar in bars {
        let (ts, end) = (bar[0].ts, bar[0].ts + bar[0].dur);
        match lanes.iter_mut().find(|lane| lane.end <= ts) {
            Some(lane) => {
                lane.end = end;
                lane.spans.extend(bar);
            }
            None => lanes.push(Lane { end, spans: bar }),
        }
    }
    lanes.into_iter().map(|lane| lane.spans).collect()
}

/// Returns the bar of a message, and then the waits inside.
fn bar(record: &Record, message: &MessageTimes, us: &impl Fn(u64) -> f64) -> Vec<Span> {
    let MessageTimes { number, request, tag, buffers, bytes, asked_ns, posted_ns, .. } = *message;
    let direction = match record.role {
        Role::Sender => "send",
        Role::Receiver => "receive",
    };
    // The bar of a message that is under way ends at the last look.
    let last_ns = record.looked_ns.max(posted_ns);
    let end_ns = message.tested_ns.unwrap_or(last_ns);
    let ts = us(asked_ns);
    let end = us(end_ns).max(ts);
    let args = json!({
        "direction": direction, "number": number, "request": request, "tag": tag, "bytes": bytes,
        "buffers": buffers, "waited us": in_us(message.waited_ns()),
        "took us": message.took_ns().map(in_us), "untested us": message.untested_ns().map(in_us),
    });
    let name = format!("{direction} of {bytes} bytes");
    let mut spans = vec![Span { kind: SpanKind::Operation, name, ts, dur: end - ts, args }];
    let mut part = |name: &str, from_ns: u64, to_ns: u64| {
        let from = us(from_ns).max(ts);
        let dur = us(to_ns).min(end - GAP_US) - from;
        if to_ns > from_ns && dur > 0.0 {
            let (kind, name) = (SpanKind::Wait, name.to_owned());
            spans.push(Span { kind, name, ts: from, dur, args: json!({}) });
        }
    };
    part("waits to be posted", asked_ns, posted_ns);
    if let Some(done_ns) = message.done_ns {
        part("waits for a test", done_ns, end_ns);
    }
    spans
}

#[cfg(test)]
mod tests {
    use invar_core::stall::EndView;

    use super::*;

    /// A record of an end with messages of these times: of the first call, the post, the completion and the test.
    fn record(role: Role, times: &[(u64, u64, Option<u64>, Option<u64>)]) -> Record {
        let mut record = Record::new(role, 1, "ends", EndView::default(), 0);
        record.looked_ns = 90_000;
        let mut messages = Vec::new();
        for (number, (asked_ns, posted_ns, done_ns, tested_ns)) in (0..).zip(times.iter().copied())
        {
            let of = MessageTimes {
                number,
                request: 8,
                tag: 3,
                buffers: 1,
                bytes: 64,
                ..Default::default()
            };
            messages.push(MessageTimes { asked_ns, posted_ns, done_ns, tested_ns, ..of });
        }
        record.note_messages(&messages);
        record
    }

    fn us(at_ns: u64) -> f64 {
        at_ns as f64 / 1e3
    }

    fn bars(lane: &[Span]) -> Vec<(&str, f64, f64)> {
        lane.iter().map(|Span { name, ts, dur, .. }| (name.as_str(), *ts, *dur)).collect()
    }

    #[test]
    fn messages_that_overlap_are_in_different_lanes_and_others_in_one() {
        let whole = |from, to| (from, from, Some(to), Some(to));
        let times = [whole(1_000, 5_000), whole(2_000, 9_000), whole(5_000, 6_000)];
        let lanes = lanes(&record(Role::Sender, &times), &us);
        let name = "send of 64 bytes";
        assert_eq!(lanes.len(), 2);
        assert_eq!(bars(&lanes[0]), [(name, 1.0, 4.0), (name, 5.0, 1.0)]);
        assert_eq!(bars(&lanes[1]), [(name, 2.0, 7.0)]);
        let args = &lanes[0][1].args;
        assert_eq!(
            (&args["number"], &args["request"], &args["tag"]),
            (&json!(2), &json!(8), &json!(3))
        );
        assert_eq!((&args["bytes"], &args["direction"]), (&json!(64), &json!("send")));
    }

    #[test]
    fn a_bar_has_the_waits_for_the_post_and_for_the_program_inside() {
        let times = [(1_000, 3_000, Some(7_000), Some(9_000))];
        let lanes = lanes(&record(Role::Sender, &times), &us);
        let bars = bars(&lanes[0]);
        assert_eq!(bars[0], ("send of 64 bytes", 1.0, 8.0));
        assert_eq!(bars[1], ("waits to be posted", 1.0, 2.0));
        let (name, ts, dur) = bars[2];
        assert_eq!((name, ts), ("waits for a test", 7.0));
        assert!(dur < 2.0 && dur > 1.99, "{dur}");
    }

    #[test]
    fn a_message_under_way_lasts_until_the_last_look_and_any_times_can_be_drawn() {
        let times = [
            (1_000, 2_000, None, None),
            (90_000, 95_000, Some(94_000), None),
            (u64::MAX, 0, Some(7), Some(3)),
        ];
        let record = record(Role::Receiver, &times);
        let lanes = lanes(&record, &us);
        assert_eq!(bars(&lanes[0])[0], ("receive of 64 bytes", 1.0, 89.0));
        assert!(lanes.iter().flatten().all(|span| span.dur >= 0.0));
    }
}
