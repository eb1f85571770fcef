//! Encodes the numbers of the recorders as OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt;

use invar_core::metrics::{Histogram, MemoryNumbers, RankNumbers};
use invar_core::recorder::{EventKind, Record};
use invar_core::stall::Role;
use invar_linux::recorder::Recorded;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::table::{Metric, OF_CONNECTIONS, OF_DEVICES, OF_PROCESSES, OF_RAILS, OF_RANKS, Value};

type Labels = Vec<(&'static str, String)>;

/// The records of some processes.
#[derive(Debug)]
struct Processes(Vec<Recorded>);

/// Encodes the numbers of processes.
pub(crate) fn encode(processes: Vec<Recorded>) -> String {
    let mut registry = Registry::with_prefix("invar");
    registry.register_collector(Box::new(Processes(processes)));
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut out, &registry);
    out
}

impl Collector for Processes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (connections, devices, ranks) = (self.connections(), self.devices(), self.ranks());
        let rails: Vec<_> = connections.iter().flat_map(rails).collect();
        encode_metrics(&mut encoder, OF_CONNECTIONS, &connections)?;
        encode_metrics(&mut encoder, OF_RAILS, &rails)?;
        encode_metrics(&mut encoder, OF_DEVICES, &devices)?;
        encode_metrics(&mut encoder, OF_RANKS, &ranks)?;
        encode_metrics(&mut encoder, OF_PROCESSES, &self.processes())
    }
}

impl Processes {
    fn processes(&self) -> Vec<(Labels, MemoryNumbers)> {
        self.0.iter().map(|recorded| (labels_of(recorded), recorded.header.memory)).collect()
    }

    /// The ranks of all processes that have not left their communicators.
    fn ranks(&self) -> Vec<(Labels, RankNumbers)> {
        let mut all = Vec::new();
        for recorded in &self.0 {
            for (_, record) in recorded.ranks.iter().filter(|(_, record)| !record.has_left) {
                let mut labels = labels_of(recorded);
                labels.extend([
                    ("communicator", format!("{:016x}", record.communicator)),
                    ("rank", record.rank.to_string()),
                    ("nranks", record.nranks.to_string()),
                ]);
                all.push((labels, record.numbers));
            }
        }
        all
    }

    /// The open connections of all processes.
    fn connections(&self) -> Vec<(Labels, Record)> {
        let mut all = Vec::new();
        for recorded in &self.0 {
            let open = recorded.records.iter().filter(|(_, record)| is_open(record));
            for (number, record) in open {
                let mut labels = labels_of(recorded);
                labels.extend([
                    ("connection", number.to_string()),
                    ("role", role(record).to_owned()),
                    ("device", record.device.as_str().to_owned()),
                    ("peer", record.peer.as_str().to_owned()),
                ]);
                all.push((labels, record.clone()));
            }
        }
        all
    }

    /// The NICs of all processes that have open connections. The kernel's counters of an interface are not those
    /// of a process, so connections over TCP have none.
    fn devices(&self) -> Vec<(Labels, Record)> {
        let mut all = Vec::new();
        for recorded in &self.0 {
            let mut devices = BTreeMap::<&str, Vec<&Record>>::new();
            let is_of_nic = |record: &&Record| !record.device.is_empty() && record.qpn != 0;
            let records = recorded.records.iter().map(|(_, record)| record);
            for record in records.filter(is_of_nic) {
                devices.entry(&record.device).or_default().push(record);
            }
            for (device, records) in devices {
                let Some(record) = latest(&records) else { continue };
                let mut labels = labels_of(recorded);
                labels.push(("device", device.to_owned()));
                all.push((labels, record.clone()));
            }
        }
        all
    }
}

/// The rails of a connection over several rails, and whether they work.
fn rails((of, record): &(Labels, Record)) -> impl Iterator<Item = (Labels, bool)> {
    let count = if record.rail_count > 1 { u32::from(record.rail_count) } else { 0 };
    (0..count.min(u8::BITS)).map(move |rail| {
        let mut labels = of.clone();
        labels.push(("rail", rail.to_string()));
        (labels, record.rails_down >> rail & 1 == 0)
    })
}

/// The labels of a process. Processes of two containers may have one number, and share a directory.
fn labels_of(recorded: &Recorded) -> Labels {
    let Recorded { path, header, .. } = recorded;
    let file = path.display().to_string();
    vec![("pid", header.process.pid.to_string()), ("recorder", file)]
}

/// The record of a device's connections that has looked at the device's counters last; `None` if no
/// connection is open. The counters begin anew when a device is opened again. So of the closed connections
/// only those count that were open together with one that is open now.
fn latest<'a>(records: &[&'a Record]) -> Option<&'a Record> {
    let open = records.iter().filter(|record| is_open(record));
    let since_ns = open.filter_map(|record| Some(record.events.front()?.at_ns)).min()?;
    let same = records.iter().filter(|record| is_open(record) || record.looked_ns >= since_ns);
    same.max_by_key(|record| record.nic.sent_packets).copied()
}

/// Whether a connection is open.
fn is_open(record: &Record) -> bool {
    record.events.back().is_none_or(|event| event.kind != EventKind::Closed)
}

fn role(record: &Record) -> &'static str {
    match record.role {
        Role::Sender => "sender",
        Role::Receiver => "receiver",
    }
}

fn encode_metrics<S>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[Metric<S>],
    subjects: &[(Labels, S)],
) -> fmt::Result {
    for metric in metrics {
        let values = subjects.iter().map(|(labels, of)| (labels, (metric.value)(of)));
        let values: Vec<_> = values.collect();
        let Some(kind) = values.iter().find_map(|(_, value)| kind(value)) else { continue };
        let unit = match metric.unit {
            "bytes" => Some(Unit::Bytes),
            "seconds" => Some(Unit::Seconds),
            _ => None,
        };
        let mut family =
            encoder.encode_descriptor(metric.name, metric.help, unit.as_ref(), kind)?;
        for (labels, value) in values.iter().filter(|(_, value)| !matches!(value, Value::None)) {
            encode_value(family.encode_family(*labels)?, value)?;
        }
    }
    Ok(())
}

fn kind(value: &Value) -> Option<MetricType> {
    match value {
        Value::None => None,
        Value::Count(_) | Value::TimeNs(_) => Some(MetricType::Counter),
        Value::Gauge(_) => Some(MetricType::Gauge),
        Value::Times(_) => Some(MetricType::Histogram),
    }
}

fn encode_value(mut to: MetricEncoder<'_>, value: &Value) -> fmt::Result {
    match value {
        Value::None => Ok(()),
        Value::Count(count) => to.encode_counter::<NoLabelSet, _, u64>(count, None),
        Value::TimeNs(ns) => to.encode_counter::<NoLabelSet, _, u64>(&Value::seconds(*ns), None),
        Value::Gauge(gauge) => to.encode_gauge(gauge),
        Value::Times(times) => {
            // The last bucket has no bound.
            let bound = |at| Histogram::bound_ns(at).map_or(f64::INFINITY, Value::seconds);
            let buckets: Vec<_> =
                times.counts.iter().enumerate().map(|(at, count)| (bound(at), *count)).collect();
            let sum = Value::seconds(times.sum_ns);
            to.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)
        }
    }
}

#[cfg(test)]
mod tests;
