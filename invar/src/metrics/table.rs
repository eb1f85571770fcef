//! The table of all metrics.

use invar_core::metrics::{Histogram, MemoryNumbers, RankNumbers};
use invar_core::recorder::Record;
use invar_core::stall::Role;

/// A metric, without the prefix `invar_`, and without `_total` behind a counter.
pub(super) struct Metric<S> {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    pub(super) value: fn(&S) -> Value,
}

/// The value of a metric.
pub(super) enum Value {
    /// The subject has no such number.
    None,
    Count(u64),
    /// A time that only grows.
    TimeNs(u64),
    Gauge(f64),
    Times(Box<Histogram>),
}

const NS: f64 = 1e-9;

fn of_sender(record: &Record, value: Value) -> Value {
    if record.role == Role::Sender { value } else { Value::None }
}

fn of_rails(record: &Record, value: Value) -> Value {
    if record.rail_count > 1 { value } else { Value::None }
}

fn of_receiver(record: &Record, value: Value) -> Value {
    if record.role == Role::Receiver { value } else { Value::None }
}

const fn metric<S>(
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    value: fn(&S) -> Value,
) -> Metric<S> {
    Metric { name, unit, help, value }
}

/// The metrics of each connection that is open.
pub(super) const OF_CONNECTIONS: &[Metric<Record>] = &[
    metric("sent", "bytes", "Bytes of sends that the program has found done", |of| {
        of_sender(of, Value::Count(of.numbers.bytes))
    }),
    metric("received", "bytes", "Bytes of receives that the program has found done", |of| {
        of_receiver(of, Value::Count(of.numbers.bytes))
    }),
    metric("sent_messages", "", "Receives of the peer that were filled and acknowledged", |of| {
        of_sender(of, Value::Count(of.view.done))
    }),
    metric("received_messages", "", "Posted receives that have arrived", |of| {
        of_receiver(of, Value::Count(of.view.done))
    }),
    metric("pending_messages", "", "Messages that have begun and are not done", |of| {
        Value::Gauge(of.view.begun.saturating_sub(of.view.done) as f64)
    }),
    metric(
        "untested_requests",
        "",
        "Requests that are done and that the program has not tested",
        |of| Value::Gauge(f64::from(of.view.untested)),
    ),
    metric(
        "send_latency",
        "seconds",
        "Times of sampled sends, from the call that starts a send to the call that finds it done",
        |of| of_sender(of, Value::Times(Box::new(of.numbers.latency))),
    ),
    metric(
        "receive_wait",
        "seconds",
        "Time for which the sender waited for the peer to post a receive, as sampled",
        |of| of_sender(of, Value::TimeNs(of.numbers.receive_wait_ns)),
    ),
    metric("still", "seconds", "Time for which the connection has waited without progress", |of| {
        Value::Gauge(if of.view.is_waiting { f64::from(of.view.still_ms) / 1e3 } else { 0.0 })
    }),
    metric("stalls", "", "Stalls that were reported", |of| Value::Count(of.numbers.stalls)),
    metric("recoveries", "", "Times that a connection made new queue pairs or sockets", |of| {
        Value::Count(of.numbers.recoveries)
    }),
    metric("failovers", "", "Times that a rail carried data and then carried none", |of| {
        of_rails(of, Value::Count(of.failovers))
    }),
    metric("recovering", "", "1 while a connection makes new queue pairs, else 0", |of| {
        Value::Gauge(f64::from(u8::from(of.view.is_recovering)))
    }),
];

/// The metrics of each rail of a connection over several rails. A rail works or not.
pub(super) const OF_RAILS: &[Metric<bool>] = &[metric(
    "rail_up",
    "",
    "1 while the rail of the connection works at both ends, else 0",
    |works| Value::Gauge(f64::from(u8::from(*works))),
)];

/// The metrics of each device that has connections. Of connections of one device the largest number counts.
pub(super) const OF_DEVICES: &[Metric<Record>] = &[
    metric("device_sent", "bytes", "Bytes that the device has sent, with headers", |of| {
        Value::Count(of.nic.sent_bytes)
    }),
    metric("device_received", "bytes", "Bytes that the device has received, with headers", |of| {
        Value::Count(of.nic.received_bytes)
    }),
    metric("device_sent_packets", "", "Packets that the device has sent", |of| {
        Value::Count(of.nic.sent_packets)
    }),
    metric("device_received_packets", "", "Packets that the device has received", |of| {
        Value::Count(of.nic.received_packets)
    }),
    metric("device_retransmitted_packets", "", "Packets sent again", |of| {
        Value::Count(of.nic.retransmitted_packets)
    }),
    metric("device_out_of_order_packets", "", "Packets that arrived before an earlier one", |of| {
        Value::Count(of.nic.out_of_order_packets)
    }),
    metric(
        "device_rnr",
        "",
        "Times that a sender had to wait as no receive was posted (RNR)",
        |of| Value::Count(of.nic.rnr),
    ),
    metric("device_ack_timeouts", "", "Times that an acknowledge did not arrive in time", |of| {
        Value::Count(of.nic.ack_timeouts)
    }),
    metric("device_corrupt_packets", "", "Packets dropped for a wrong ICRC, tag or header", |of| {
        Value::Count(of.nic.corrupt_packets)
    }),
    metric("device_dropped_packets", "", "Packets dropped for other reasons", |of| {
        Value::Count(of.nic.dropped_packets)
    }),
];

/// The metrics of each rank of a communicator.
pub(super) const OF_RANKS: &[Metric<RankNumbers>] = &[
    metric("rank_operations", "", "Operations that the rank has finished", |of| {
        Value::Count(of.operations)
    }),
    metric(
        "rank",
        "bytes",
        "Bytes of the operations that the rank has finished, as their counts say",
        |of| Value::Count(of.bytes),
    ),
    metric("rank_wait", "seconds", "Time for which the rank waited for other ranks", |of| {
        Value::TimeNs(of.waited_ns)
    }),
    metric("rank_stalls", "", "Stalls of the communicator that the rank reported", |of| {
        Value::Count(of.stalls)
    }),
];

/// The metrics of each process.
pub(super) const OF_PROCESSES: &[Metric<MemoryNumbers>] = &[
    metric("registrations", "", "Memory regions that were registered with NICs", |of| {
        Value::Count(of.registrations)
    }),
    metric("registration_hits", "", "Registrations whose pages were registered already", |of| {
        Value::Count(of.registration_hits)
    }),
    metric("staged", "bytes", "Bytes of GPU memory copied through pinned host memory", |of| {
        Value::Count(of.staged_bytes)
    }),
];

/// A number as it is shown.
impl Value {
    pub(super) fn seconds(ns: u64) -> f64 {
        ns as f64 * NS
    }
}
