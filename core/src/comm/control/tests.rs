//! Tests of the messages beside the queue pairs.

extern crate std;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::conn::wire::DeviceName;
use crate::nic::{Gid, LinkLayer, Mtu, QpOptions, SourcePorts};

/// A stream that moves at most `credit` bytes in a call.
struct Slow {
    bytes: heapless::Deque<u8, 4096>,
    credit: usize,
}

impl Stream for Slow {
    fn peer_addr(&self) -> Option<core::net::SocketAddr> {
        None
    }

    fn poll_connected(&mut self) -> Result<bool, StreamError> {
        Ok(true)
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let taken = bytes.iter().take(self.credit);
        Ok(taken.map_while(|byte| self.bytes.push_back(*byte).ok()).count())
    }

    fn recv(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        let room = buf.iter_mut().take(self.credit);
        let filled = room.map_while(|room| self.bytes.pop_front().map(|byte| *room = byte));
        Ok(filled.count())
    }
}

fn report(attempt: u32, rows: u64, qps: u32) -> Control {
    let preface = Preface {
        standby: None,
        fifo_depth: 64,
        qp_count: qps as u16,
        options: QpOptions::all(),
        udp_port: 4791,
        udp_source_ports: SourcePorts::default(),
        sizes_addr: 0,
        sizes_rkey: 0,
        ece: None,
        recovers: true,
        renewal_port: 0,
        shares_views: true,
        tells_time: true,
        long_mtu_bytes: 0,
        rails: 1,
        rail: 0,
        needs_grh: true,
        device: DeviceName::new(),
    };
    let info = QpInfo {
        lid: 1,
        ib_port: 1,
        link_layer: LinkLayer::Ethernet,
        qpns: (2..2 + qps).collect(),
        gid: Gid([1; 16]),
        mtu: Mtu::Mtu1024,
        fifo_rkey: 0,
        fifo_addr: 0,
    };
    Control::Report(RecoveryReport { attempt, rows, preface, info })
}

fn any_control() -> impl Strategy<Value = Control> {
    prop_oneof![
        any::<u64>().prop_map(|rows_done| Control::Close { rows_done }),
        any::<u32>().prop_map(|attempt| Control::Ready { attempt }),
        Just(Control::Failed),
        any::<u64>().prop_map(|rows| Control::Ask { rows }),
        any::<u64>().prop_map(|rows| Control::Seen { rows }),
        (any::<u32>(), any::<u64>()).prop_map(|(attempt, rows)| report(attempt, rows, 3)),
    ]
}

/// Moves messages until none is on its way.
fn drain(
    writer: &mut ControlWriter,
    reader: &mut ControlReader,
    stream: &mut Slow,
) -> Vec<Control> {
    let mut received = Vec::new();
    for _ in 0..3000 {
        writer.flush(stream);
        received.extend(reader.recv(stream, 3, &mut 64).unwrap());
    }
    received
}

/// The messages of `sent` that a peer must still learn of. A report replaces those before it.
fn needed(sent: &[Control]) -> &[Control] {
    let last = sent.iter().rposition(|message| matches!(message, Control::Report(_)));
    &sent[last.unwrap_or(0)..]
}

proptest! {
    #[test]
    fn messages_survive_a_stream_that_moves_few_bytes_at_once(
        sent in prop::collection::vec(any_control(), 1..6), credit in 1usize..2000,
    ) {
        let mut stream = Slow { bytes: heapless::Deque::new(), credit };
        let (mut writer, mut reader) = (ControlWriter::new(), ControlReader::new());
        for message in &sent {
            prop_assume!(writer.put(message, 0));
            writer.flush(&mut stream);
        }
        let received = drain(&mut writer, &mut reader, &mut stream);
        prop_assert!(received.ends_with(needed(&sent)), "{:?}", received);
        prop_assert_eq!(reader.next(), sent.len() as u64);
    }

    #[test]
    fn no_message_is_lost_or_taken_twice_where_the_stream_is_lost(
        sent in prop::collection::vec((any_control(), 0usize..1500, any::<bool>()), 1..5),
    ) {
        let mut stream = Slow { bytes: heapless::Deque::new(), credit: 2000 };
        let (mut writer, mut reader) = (ControlWriter::new(), ControlReader::new());
        let mut received = Vec::new();
        for (message, arrive, is_heard) in &sent {
            prop_assume!(writer.put(message, 0));
            writer.flush(&mut stream);
            // The stream is lost after this many bytes have arrived.
            stream.bytes.truncate(*arrive);
            while let Some(message) = reader.recv(&mut stream, 3, &mut 64).unwrap() {
                received.push(message);
            }
            stream.bytes.clear();
            reader.renewed();
            writer.renewed();
            if *is_heard {
                prop_assert_eq!(writer.acknowledged(reader.next()), Ok(()));
            }
        }
        received.extend(drain(&mut writer, &mut reader, &mut stream));
        let all: Vec<Control> = sent.into_iter().map(|(message, ..)| message).collect();
        prop_assert!(received.ends_with(needed(&all)), "{:?}", received);
        // The messages arrive in their order, and none twice.
        let mut left = all.iter();
        prop_assert!(received.iter().all(|message| left.any(|sent| sent == message)));
    }

    #[test]
    fn of_views_the_last_arrives_as_it_was_sent(
        views in prop::collection::vec(any::<([[u8; 32]; 3], bool)>(), 1..6), credit in 1usize..300,
    ) {
        let mut stream = Slow { bytes: heapless::Deque::new(), credit };
        let (mut writer, mut reader) = (ControlWriter::new(), ControlReader::new());
        let mut received = Vec::new();
        let mut last = None;
        for (bytes, asks) in &views {
            let view = EndView::parse(ViewBytes::ref_from_bytes(&bytes.concat()).unwrap());
            let message = Control::View { view, asks: *asks };
            // A view takes the place of one that has not left, so there is always room.
            prop_assert!(writer.put(&message, 0));
            writer.flush(&mut stream);
            received.extend(reader.recv(&mut stream, 3, &mut 64).unwrap());
            last = Some(message);
        }
        received.extend(drain(&mut writer, &mut reader, &mut stream));
        prop_assert_eq!(received.last(), last.as_ref());
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), head in 0..8) {
        let mut stream = Slow { bytes: heapless::Deque::new(), credit: 700 };
        let head = [&CLOSE[..], &REPORT, &READY, &FAILED, &ASK, &SEEN, &VIEW, &[]][head as usize];
        head.iter().chain(&bytes).for_each(|byte| stream.bytes.push_back(*byte).unwrap());
        let mut reader = ControlReader::new();
        while let Ok(Some(_)) = reader.recv(&mut stream, 128, &mut 64) {}
    }
}

#[test]
fn a_peer_that_has_heard_more_than_was_said_is_refused() {
    assert_eq!(ControlWriter::new().acknowledged(1), Err(Error::Unexpected));
}

#[test]
fn a_peer_that_repeats_a_message_without_end_does_not_keep_the_reader() {
    let head = HeadBytes { magic: SEEN, value: 7.into(), number: 0.into(), heard: 0.into() };
    let mut stream = Slow { bytes: heapless::Deque::new(), credit: usize::MAX };
    let sent = [head.as_bytes(); 100].concat();
    assert_eq!(stream.send(&sent), Ok(sent.len()));
    let (mut reader, mut budget) = (ControlReader::new(), 64);
    assert_eq!(reader.recv(&mut stream, 1, &mut budget), Ok(Some(Control::Seen { rows: 7 })));
    assert_eq!(reader.recv(&mut stream, 1, &mut budget), Ok(None));
    assert_eq!((budget, stream.bytes.len()), (0, 36 * HEAD_BYTES));
}
