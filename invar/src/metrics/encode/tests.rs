use std::collections::BTreeSet;
use std::fs;

use invar_core::metrics::EndNumbers;
use invar_core::nic::NicCounters;
use invar_core::recorder::{Header, RankRecord};
use invar_core::stall::{EndView, Process};

use super::*;

fn record(role: Role, peer: &str) -> Record {
    let view = EndView {
        process: Process::new(7, "a"),
        is_waiting: true,
        begun: 9,
        done: 7,
        untested: 2,
        still_ms: 1500,
        ..EndView::default()
    };
    let mut record = Record::new(role, 1, "both ends", view, 5);
    record.name("soft0", peer);
    record.numbers = EndNumbers { bytes: 4096, recoveries: 1, stalls: 3, ..EndNumbers::default() };
    record.numbers.receive_wait_ns = 2_500_000_000;
    record.numbers.latency.add(2_500);
    record.nic =
        NicCounters { sent_bytes: 5000, sent_packets: 2, rnr: 4, ..NicCounters::default() };
    record
}

fn process(pid: u32, records: Vec<Record>) -> Recorded {
    let memory = MemoryNumbers { registrations: 3, registration_hits: 40, staged_bytes: 500 };
    let header = Header { process: Process::new(pid, "a"), unix_offset_ns: 0, memory };
    let records = records.into_iter().enumerate().collect();
    let path = format!("/tmp/invar-1/{pid}.rec").into();
    Recorded { path, user: 1, header, is_alive: true, records, ranks: Vec::new(), damaged: 0 }
}

fn rank(rank: u32) -> RankRecord {
    let numbers = RankNumbers { operations: 12, bytes: 8192, waited_ns: 1_500_000_000, stalls: 2 };
    RankRecord { communicator: 0xab, rank, nranks: 4, numbers, ..RankRecord::default() }
}

#[test]
fn each_open_connection_and_each_device_has_its_numbers() {
    let mut closed = record(Role::Sender, "10.0.0.3");
    closed.closed(6);
    closed.nic.sent_bytes = 6000;
    closed.nic.sent_packets = 3;
    let records = vec![record(Role::Sender, "10.0.0.2"), record(Role::Receiver, "a\"b"), closed];
    let text = encode(vec![process(7, records)]);
    let sender = r#"{pid="7",recorder="/tmp/invar-1/7.rec",connection="0",role="sender",device="soft0",peer="10.0.0.2"}"#;
    let receiver = r#"{pid="7",recorder="/tmp/invar-1/7.rec",connection="1",role="receiver",device="soft0",peer="a\"b"}"#;
    for line in [
        "# TYPE invar_sent_bytes counter".to_owned(),
        "# UNIT invar_sent_bytes bytes".to_owned(),
        format!("invar_sent_bytes_total{sender} 4096"),
        format!("invar_received_bytes_total{receiver} 4096"),
        format!("invar_sent_messages_total{sender} 7"),
        format!("invar_pending_messages{sender} 2.0"),
        format!("invar_receive_wait_seconds_total{sender} 2.5"),
        format!("invar_still_seconds{receiver} 1.5"),
        format!("invar_stalls_total{sender} 3"),
        format!("invar_send_latency_seconds_count{sender} 1"),
        // The connection that has closed has looked last at its device.
        r#"invar_device_sent_bytes_total{pid="7",recorder="/tmp/invar-1/7.rec",device="soft0"} 6000"#.to_owned(),
        r#"invar_device_rnr_total{pid="7",recorder="/tmp/invar-1/7.rec",device="soft0"} 4"#.to_owned(),
        r#"invar_registrations_total{pid="7",recorder="/tmp/invar-1/7.rec"} 3"#.to_owned(),
        r#"invar_registration_hits_total{pid="7",recorder="/tmp/invar-1/7.rec"} 40"#.to_owned(),
        r#"invar_staged_bytes_total{pid="7",recorder="/tmp/invar-1/7.rec"} 500"#.to_owned(),
        "# EOF".to_owned(),
    ] {
        assert!(text.lines().any(|of| of == line), "no {line} in\n{text}");
    }
    assert!(!text.contains("10.0.0.3"), "{text}");
    assert!(text.contains(r#"le="+Inf",pid="7""#) || text.contains(r#"le="+Inf""#), "{text}");
    let bytes_of = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(
        (bytes_of("invar_sent_bytes_total"), bytes_of("invar_received_bytes_total")),
        (1, 1)
    );
}

#[test]
fn each_rail_of_a_connection_over_several_says_whether_it_works() {
    let mut two = record(Role::Sender, "10.0.0.2");
    (two.rail_count, two.rails_down, two.failovers) = (2, 0b10, 5);
    let text = encode(vec![process(7, vec![two, record(Role::Sender, "10.0.0.3")])]);
    let ends_of = |name: &str| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit_once(',').unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends_of("invar_rail_up{"), [r#"rail="0"} 1.0"#, r#"rail="1"} 0.0"#]);
    assert_eq!(ends_of("invar_failovers_total{"), [r#"peer="10.0.0.2"} 5"#]);
}

#[test]
fn each_rank_that_has_not_left_has_its_numbers() {
    let mut recorded = process(7, Vec::new());
    recorded.ranks = vec![(0, rank(1)), (1, RankRecord { has_left: true, ..rank(2) })];
    let text = encode(vec![recorded]);
    let of = r#"{pid="7",recorder="/tmp/invar-1/7.rec",communicator="00000000000000ab",rank="1",nranks="4"}"#;
    for line in [
        format!("invar_rank_operations_total{of} 12"),
        format!("invar_rank_bytes_total{of} 8192"),
        format!("invar_rank_wait_seconds_total{of} 1.5"),
        format!("invar_rank_stalls_total{of} 2"),
    ] {
        assert!(text.lines().any(|of| of == line), "no {line} in\n{text}");
    }
    assert!(!text.contains(r#"rank="2""#), "{text}");
}

#[test]
fn processes_of_one_number_have_series_of_their_own() {
    let one = process(7, vec![record(Role::Sender, "10.0.0.2")]);
    let other = Recorded { path: "/tmp/invar-1/7-1.rec".into(), ..one.clone() };
    let text = encode(vec![one, other]);
    let series: Vec<_> = text.lines().filter_map(|line| line.rsplit_once(' ')).collect();
    let names: BTreeSet<_> = series.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), series.len(), "{text}");
}

#[test]
fn a_device_that_is_opened_again_counts_anew_and_one_without_connections_is_not_shown() {
    let mut before = record(Role::Sender, "10.0.0.2");
    before.nic.sent_packets = 90;
    before.look(before.view, 8);
    before.closed(8);
    assert!(!encode(vec![process(7, vec![before.clone()])]).contains("invar_device"));
    let mut again = Record::new(Role::Sender, 1, "both ends", before.view, 20);
    again.name("soft0", "10.0.0.2");
    again.nic.sent_packets = 4;
    let text = encode(vec![process(7, vec![before, again])]);
    let packets = "invar_device_sent_packets_total{";
    let values: Vec<_> = text.lines().filter(|line| line.starts_with(packets)).collect();
    assert!(matches!(values[..], [line] if line.ends_with(" 4")), "{values:?}");
}

#[test]
fn without_connections_there_is_an_empty_text() {
    assert_eq!(encode(Vec::new()), "# EOF\n");
}

#[test]
fn the_manual_lists_exactly_the_metrics_that_there_are() {
    let mut records = vec![record(Role::Sender, "p"), record(Role::Receiver, "p")];
    records[0].rail_count = 2;
    let ranks = vec![(2, rank(1))];
    let text = encode(vec![Recorded { ranks, ..process(7, records) }]);
    let line = |line: &str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let total = if kind == "counter" { "_total" } else { "" };
        Some((format!("{name}{total}"), kind.to_owned()))
    };
    let help = |name: &str| {
        let name = name.trim_end_matches("_total");
        let start = format!("# HELP {name} ");
        let help = text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default();
        help.trim_end_matches('.').to_owned()
    };
    let rows: BTreeSet<String> = text
        .lines()
        .filter_map(line)
        .map(|(name, kind)| format!("| `{name}` | {kind} | {} |", help(&name)))
        .collect();
    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
    let manual = fs::read_to_string(manual).unwrap();
    let listed: BTreeSet<String> =
        manual.lines().filter(|line| line.starts_with("| `invar_")).map(str::to_owned).collect();
    let rows_text = rows.iter().cloned().collect::<Vec<_>>().join("\n");
    assert_eq!(listed, rows, "docs/metrics.md should have these rows:\n{rows_text}\n");
}
