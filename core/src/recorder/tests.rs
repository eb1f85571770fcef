extern crate std;

use std::string::ToString;

use proptest::prelude::*;

use super::*;
use crate::error::status_name;
use crate::nic::WcStatus;

/// Place of the number of messages in a record.
const MESSAGES_LEN_AT: usize = core::mem::offset_of!(RecordBytes, messages_len);

fn view(begun: u64, done: u64) -> EndView {
    EndView { process: Process::new(7, "a"), begun, done, ..EndView::default() }
}

fn record() -> Record {
    Record::new(Role::Sender, 0x11, "soft0 to peer 10.0.0.2:4000", view(0, 0), 5)
}

#[test]
fn a_record_keeps_the_last_changes_in_order() {
    let mut record = record();
    assert!(!record.look(view(0, 0), 6));
    for turn in 1..200 {
        assert!(record.look(view(turn, turn - 1), turn * 2 * MERGE_NS));
    }
    assert_eq!(record.events.len(), EVENTS);
    let begun: std::vec::Vec<u64> = record.events.iter().map(|event| event.begun).collect();
    assert!(begun.iter().copied().eq(200 - EVENTS as u64..200), "{begun:?}");
}

#[test]
fn progress_within_a_second_is_one_event_with_the_last_numbers() {
    let mut record = record();
    for turn in 1..=20 {
        record.look(view(turn, turn), 5 + turn * MERGE_NS / 20);
    }
    let kinds: std::vec::Vec<_> =
        record.events.iter().map(|event| (event.kind, event.done)).collect();
    assert_eq!(kinds, [(EventKind::Opened, 0), (EventKind::Progress, 20)]);
}

#[test]
fn waits_recoveries_and_verdicts_are_events() {
    let mut record = record();
    record.look(EndView { is_waiting: true, is_recovering: true, ..view(0, 0) }, 7);
    record.stall("the receiver has posted no receive", 8);
    record.look(view(0, 0), 9);
    record.closed(10);
    record.name("soft0", "10.0.0.2");
    record.numbers = EndNumbers { bytes: 7, recoveries: 2, stalls: 1, ..EndNumbers::default() };
    record.numbers.receive_wait_ns = 9;
    record.number = 0x1234;
    record.peer_clock = Some(PeerClock { ahead_ns: -5, uncertainty_ns: 3 });
    record.numbers.latency.add(1_200);
    record.nic = NicCounters::from_array(core::array::from_fn(|i| i as u64 + 1));
    let kinds: std::vec::Vec<_> = record.events.iter().map(|event| event.kind).collect();
    use EventKind as Kind;
    let expected = [
        Kind::Opened,
        Kind::Recovery,
        Kind::Waits,
        Kind::Stall,
        Kind::Recovered,
        Kind::WaitsNot,
        Kind::Closed,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(Record::parse(&record.to_bytes(3)), Ok(Some(record)));
}

#[test]
fn events_of_errors_fences_and_rails_name_their_detail() {
    let mut record = record();
    record.push(EventKind::Error, WcStatus::RETRY_EXC_ERR.0 as u16, 6);
    record.push(EventKind::Error, 0, 6);
    record.push(EventKind::Fence, 2, 7);
    record.push(EventKind::RailDown, 1, 8);
    record.push(EventKind::RailUp, 1, 9);
    (record.rail_count, record.rails_down) = (2, 0b10);
    let names: std::vec::Vec<_> = record.events.iter().map(ToString::to_string).collect();
    assert_eq!(record.failovers, 1);
    let error = std::format!("error {}", status_name(WcStatus::RETRY_EXC_ERR));
    assert_eq!(names, ["opened", &error, "error", "fence 2", "rail down 1", "rail up 1"]);
    assert_eq!(Record::parse(&record.to_bytes(3)), Ok(Some(record)));
}

#[test]
fn what_is_no_record_is_refused_in_words() {
    let record = record();
    let bytes = record.to_bytes(3);
    assert_eq!(Record::parse(&[0; RECORD_BYTES]), Ok(None));
    assert_eq!(Record::parse(&bytes[1..]), Err(RecordError::Short(RECORD_BYTES - 1)));
    let mut torn = bytes;
    torn[0] += 1;
    assert_eq!(Record::parse(&torn), Err(RecordError::Torn));
    let mut timed = record;
    timed.note_messages(&[MessageTimes::default(); 2]);
    let bytes = timed.to_bytes(3);
    let cut = &bytes[..RECORD_BYTES_MAX - 1];
    assert_eq!(Record::parse(cut), Err(RecordError::Short(RECORD_BYTES_MAX - 1)));
    for turn_at in [RECORD_BYTES, RECORD_BYTES_MAX - 8] {
        let mut torn = bytes.clone();
        torn[turn_at] += 1;
        assert_eq!(Record::parse(&torn), Err(RecordError::Torn));
    }
    let mut too_many = bytes;
    too_many[MESSAGES_LEN_AT] = MESSAGES as u8 + 1;
    let (what, value) = ("the number of messages", MESSAGES as u64 + 1);
    assert_eq!(Record::parse(&too_many), Err(RecordError::Field { what, value }));
    let memory = MemoryNumbers { registrations: 1, registration_hits: 2, staged_bytes: 3 };
    let header = Header { process: Process::new(7, "a"), unix_offset_ns: -5, memory };
    let bytes = header.to_bytes();
    assert_eq!(Header::parse(&bytes), Ok(header));
    assert_eq!(bytes[NUMBERS_AT..][..24], memory.to_bytes());
    assert_eq!(Header::parse(b"#!/bin/sh"), Err(RecordError::Magic));
    assert_eq!(Header::parse(&bytes[..40]), Err(RecordError::Short(40)));
    let mut newer = bytes;
    newer[8] = 9;
    assert_eq!(Header::parse(&newer), Err(RecordError::Version(9)));
}

#[test]
fn a_record_with_messages_is_whole_without_the_page_of_its_messages() {
    let plain = record();
    let mut timed = plain.clone();
    timed.note_messages(&[MessageTimes::default(); 2]);
    let bytes = timed.to_bytes(3);
    assert_eq!(Record::parse(&bytes[..RECORD_BYTES]), Ok(Some(plain.clone())));
    assert!(Record::has_messages(&bytes) && !Record::has_messages(&plain.to_bytes(3)));
    // The text of an operation stands where a connection's record has the number of its messages.
    let mut rank = RankRecord::default();
    let text = heapless::String::try_from("all_reduce").unwrap();
    rank.operations.resize(OPERATIONS, RankOperation { text, ..RankOperation::default() }).unwrap();
    let mut bytes = rank.to_bytes(3).to_vec();
    bytes.resize(RECORD_BYTES, 0);
    assert!(!Record::has_messages(&bytes));
}

fn any_view() -> impl Strategy<Value = EndView> {
    any::<[[u8; 32]; 3]>().prop_map(|bytes| {
        let bytes = bytes.concat();
        EndView::parse(ViewBytes::ref_from_bytes(&bytes).unwrap())
    })
}

fn any_message() -> impl Strategy<Value = MessageTimes> {
    (any::<[u64; 6]>(), any::<[u32; 3]>()).prop_map(|(numbers, [request, tag, buffers])| {
        let [number, bytes, asked_ns, posted_ns, done_ns, tested_ns] = numbers;
        // An odd number is a step that the message has not reached.
        let time = |ns: u64| (ns.is_multiple_of(2)).then_some(ns);
        let (done_ns, tested_ns) = (time(done_ns), time(tested_ns));
        MessageTimes {
            number,
            request,
            tag,
            buffers,
            bytes,
            asked_ns,
            posted_ns,
            done_ns,
            tested_ns,
        }
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let kind = prop::sample::select(EventKind::ALL.as_slice());
    let numbers = (any::<[u64; 3]>(), any::<u32>(), any::<u16>());
    (kind, numbers).prop_map(|(kind, ([at_ns, begun, done], untested, detail))| Event {
        at_ns,
        kind,
        begun,
        done,
        untested,
        detail,
    })
}

proptest! {
    #[test]
    fn any_record_survives_the_file(
        is_sender: bool, (qpn, looked_ns) in any::<(u32, u64)>(), view in any_view(),
        (ends, device) in ("[ -~]{0,256}", "[ -~]{0,64}"),
        (peer, verdict) in ("[ -~]{0,64}", "[ -~]{0,704}"),
        numbers: [u64; 5], nic: [u64; NicCounters::COUNT],
        events in prop::collection::vec(any_event(), 0..=EVENTS),
        messages in prop::collection::vec(any_message(), 0..=MESSAGES), turn: u64,
    ) {
        let role = if is_sender { Role::Sender } else { Role::Receiver };
        let mut record = Record::new(role, qpn, &ends, view, looked_ns);
        record.name(&device, &peer);
        record.verdict = cut(&verdict);
        let [bytes, recoveries, stalls, receive_wait_ns, latency_ns] = numbers;
        record.numbers = EndNumbers { bytes, recoveries, stalls, receive_wait_ns, ..EndNumbers::default() };
        record.numbers.latency.add(latency_ns);
        record.nic = NicCounters::from_array(nic);
        record.events.clear();
        record.events.extend(events);
        record.note_messages(&messages);
        prop_assert_eq!(Record::parse(&record.to_bytes(turn)), Ok(Some(record)));
    }

    #[test]
    fn no_bytes_make_it_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..RECORD_BYTES_MAX + 8),
        role in 0u8..4, len in 0u8..80, messages in 0u64..50,
    ) {
        let mut bytes = bytes;
        bytes.resize(RECORD_BYTES_MAX, 0);
        (bytes[12], bytes[13], bytes[14], bytes[15]) = (role, 0, len, 0);
        bytes[MESSAGES_LEN_AT..][..8].copy_from_slice(&messages.to_le_bytes());
        for turn_at in [RECORD_BYTES - 8, RECORD_BYTES, RECORD_BYTES_MAX - 8] {
            bytes.copy_within(..8, turn_at);
        }
        let _ = Record::parse(&bytes);
        let _ = Record::parse(&bytes[..RECORD_BYTES]);
        let _ = Header::parse(&bytes);
    }
}
