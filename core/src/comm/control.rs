//! The messages that the two ends of a comm exchange over the stream after the handshake.
//!
//! - A closing receiver says which receives are complete. The NIC's acknowledge of the last message may
//!   be lost, and once the receiver's process has ended, nobody repeats that acknowledge. The kernel
//!   still delivers the stream.
//! - The two ends make new queue pairs after a failure; see [`super::recovery`].
//! - An end whose rows make no progress asks which of them have come; see [`super::watch`].
//! - An end whose comm has failed says so, because its peer may wait for new queue pairs.
//! - An end that stands still asks the peer for its view; see [`stall`](crate::stall).
//!
//! Messages are numbered, and each message says how many of the peer's have arrived. So no message is lost
//! or taken twice where the stream is made anew; see [`super::line`]. A report replaces the messages before
//! it, so an end keeps few messages.

mod rails;

use static_assertions::{assert_eq_size, const_assert};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::conn::wire::{
    MESSAGE_BYTES_MAX, PREFACE_BYTES, Preface, PrefaceBytes, QP_INFO_BYTES, QpInfo, QpInfoBytes,
};
use crate::conn::{RailSet, Stream, StreamError};
use crate::error::Error;
use crate::mutant::{Mutant, is_planted};
use crate::stall::{EndView, VIEW_BYTES, ViewBytes};
use rails::{RAILS_REPORT_BYTES, RailsReportBytes};

pub(super) use rails::{RailEnd, RailsReport, RowSet};

/// The head of each message, little-endian.
///
/// ```text
/// byte 0       8       16       24      32
///      +-------+-------+--------+-------+
///      | magic | value | number | heard |
///      +-------+-------+--------+-------+
/// ```
///
/// `number` counts the messages of one end from 0. `heard` is the number that the end awaits next from its
/// peer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    value: U64,
    number: U64,
    heard: U64,
}

/// The body of [`Control::Report`], which follows its head.
///
/// ```text
/// byte 0      8         128       680
///      +------+---------+---------+
///      | rows | preface | QP info |
///      +------+---------+---------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ReportBytes {
    rows: U64,
    preface: PrefaceBytes,
    info: QpInfoBytes,
}

const HEAD_BYTES: usize = size_of::<HeadBytes>();
const REPORT_BYTES: usize = HEAD_BYTES + size_of::<ReportBytes>();
/// Bytes of a [`Control::View`].
const VIEW_MESSAGE_BYTES: usize = HEAD_BYTES + VIEW_BYTES;
const RAILS_BYTES: usize = HEAD_BYTES + RAILS_REPORT_BYTES;
/// Bytes of the longest message.
const MESSAGE_MAX: usize = RAILS_BYTES;

const_assert!(REPORT_BYTES <= MESSAGE_MAX);

assert_eq_size!(HeadBytes, [u8; 32]);
assert_eq_size!(ReportBytes, [u8; 8 + PREFACE_BYTES + QP_INFO_BYTES]);
assert_eq_size!([u8; size_of::<ReportBytes>()], [u8; 8 + MESSAGE_BYTES_MAX]);

const CLOSE: [u8; 8] = *b"\x89CLOSE\r\n";
const REPORT: [u8; 8] = *b"\x89AGAIN\r\n";
const RAILS: [u8; 8] = *b"\x89RAILS\r\n";
const RAILS_UP: [u8; 8] = *b"\x89PORTS\r\n";
const READY: [u8; 8] = *b"\x89READY\r\n";
const FAILED: [u8; 8] = *b"\x89ENDED\r\n";
const ASK: [u8; 8] = *b"\x89WHERE\r\n";
const SEEN: [u8; 8] = *b"\x89SEEN!\r\n";
const VIEW: [u8; 8] = *b"\x89STUCK\r\n";
/// All messages.
const ALL: [[u8; 8]; 9] = [CLOSE, REPORT, RAILS, RAILS_UP, READY, FAILED, ASK, SEEN, VIEW];

/// A message of one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is no allocator, and few messages are sent")]
pub(super) enum Control {
    /// The receiver closes. All receives before number `rows_done`, counted from 0, are complete.
    Close { rows_done: u64 },
    /// This end's old queue pairs have stopped, and these are its new ones.
    Report(Report),
    /// The same report, of an end of a connection with several rails.
    RailsReport(RailsReport),
    /// The ports of these rails are up at this end.
    RailsUp { rails: RailSet },
    /// This end's queue pairs of attempt `attempt` send and receive.
    Ready { attempt: u32 },
    /// This end has sent or posted so many rows. Which of them have come?
    Ask { rows: u64 },
    /// So many rows of the peer have come, as far as it has asked.
    Seen { rows: u64 },
    /// This end's comm has failed.
    Failed,
    /// This end's view.
    View {
        view: EndView,
        /// Whether this end asks for the peer's view.
        asks: bool,
    },
}

/// The report of an end about its stopped queue pairs, and its new queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Number of the attempt. Both ends use the queue pairs of the same attempt.
    pub(super) attempt: u32,
    /// From the sender: the number of rows that it has sent. From the receiver: the number of rows that
    /// have arrived. Rows are counted from the start of the connection.
    pub(super) rows: u64,
    pub(super) preface: Preface,
    pub(super) info: QpInfo,
}

/// Bytes that a writer keeps: a message that is half sent, a report, and the short messages after it.
const KEPT_BYTES_MAX: usize = 2 * MESSAGE_MAX + 8 * HEAD_BYTES;

/// Sends messages over the stream of a comm, and keeps those that the peer may not have.
pub(super) struct ControlWriter {
    /// Whole messages, in the order of their numbers.
    kept: heapless::Vec<u8, KEPT_BYTES_MAX>,
    /// The number of bytes of `kept` that this stream has taken.
    sent: usize,
    /// The number of the next message.
    next: u64,
}

/// Receives messages from the stream of a comm.
pub(super) struct ControlReader {
    bytes: [u8; MESSAGE_MAX],
    got: usize,
    /// The number of the message that is awaited.
    next: u64,
    /// The number of this end's message that the peer awaits.
    heard: u64,
}

/// Returns the length in bytes of the message that begins with a head.
fn message_bytes(head: &HeadBytes) -> usize {
    match head.magic {
        REPORT => REPORT_BYTES,
        RAILS => RAILS_BYTES,
        VIEW => VIEW_MESSAGE_BYTES,
        _ => HEAD_BYTES,
    }
}

impl ControlWriter {
    pub(super) const fn new() -> Self {
        ControlWriter { kept: heapless::Vec::new(), sent: 0, next: 0 }
    }

    /// Lays out a message, which [`ControlWriter::flush`] sends. `heard` is the number that this end awaits
    /// next from its peer. Returns `false` if earlier messages fill the buffer, because the peer reads
    /// nothing.
    pub(super) fn put(&mut self, message: &Control, heard: u64) -> bool {
        let (magic, value) = match message {
            Control::Close { rows_done } => (CLOSE, *rows_done),
            Control::Report(report) => (REPORT, report.attempt.into()),
            Control::RailsReport(report) => (RAILS, report.attempt.into()),
            Control::RailsUp { rails } => (RAILS_UP, rails.0.into()),
            Control::Ready { attempt } => (READY, (*attempt).into()),
            Control::Ask { rows } => (ASK, *rows),
            Control::Seen { rows } => (SEEN, *rows),
            Control::Failed => (FAILED, 0),
            Control::View { asks, .. } => (VIEW, u64::from(*asks)),
        };
        let head =
            HeadBytes { magic, value: value.into(), number: self.next.into(), heard: heard.into() };
        let (report, rails, view);
        let body = match message {
            Control::Report(Report { rows, preface, info, .. }) => {
                let (preface, info) = (preface.to_bytes(), info.to_bytes());
                report = ReportBytes { rows: (*rows).into(), preface, info };
                report.as_bytes()
            }
            Control::RailsReport(report) => {
                rails = report.to_bytes();
                rails.as_bytes()
            }
            Control::View { view: of, .. } => {
                view = of.to_bytes();
                view.as_bytes()
            }
            _ => &[],
        };
        match magic {
            // The peer needs no older report, and no word about an older attempt.
            REPORT | RAILS => self.forget(|_, is_half_sent| !is_half_sent),
            // Views and words about ports must leave room for other messages. The last one counts.
            VIEW | RAILS_UP => {
                self.forget(|head, is_half_sent| !is_half_sent && head.magic == magic)
            }
            _ => {}
        }
        if self.kept.len() + HEAD_BYTES + body.len() > self.kept.capacity() {
            return false;
        }
        let _ = self.kept.extend_from_slice(head.as_bytes());
        let _ = self.kept.extend_from_slice(body);
        self.next = self.next.saturating_add(1);
        true
    }

    /// Forgets the messages that the peer has. `heard` is the number that the peer awaits next.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if the peer has heard more than this end has said.
    pub(super) fn acknowledged(&mut self, heard: u64) -> Result<(), Error> {
        self.forget(|head, is_half_sent| !is_half_sent && head.number.get() < heard);
        if heard <= self.next { Ok(()) } else { Err(Error::Unexpected) }
    }

    /// Forgets the messages for which `is_over` says so. It gets each message's head, and whether the stream
    /// has taken a part of the message.
    fn forget(&mut self, is_over: impl Fn(&HeadBytes, bool) -> bool) {
        let mut at = 0;
        while let Some((head, _)) =
            self.kept.get(at..).and_then(|rest| HeadBytes::read_from_prefix(rest).ok())
        {
            let end = at + message_bytes(&head);
            if !is_over(&head, at < self.sent && self.sent < end) {
                at = end;
                continue;
            }
            self.kept.copy_within(end.., at);
            self.kept.truncate(self.kept.len() - (end - at));
            if self.sent >= end {
                self.sent -= end - at;
            }
        }
    }

    /// Sends what the stream takes. If the stream has ended, the reader notices it.
    pub(super) fn flush(&mut self, stream: &mut impl Stream) {
        while self.sent < self.kept.len()
            && let Ok(sent @ 1..) = stream.send(&self.kept[self.sent..])
        {
            self.sent = self.kept.len().min(self.sent + sent);
        }
    }

    /// Sends all kept messages again, over a new stream.
    pub(super) fn renewed(&mut self) {
        if is_planted(Mutant::ForgetKept) {
            self.kept.clear();
        }
        self.sent = 0;
    }
}

impl ControlReader {
    pub(super) const fn new() -> Self {
        ControlReader { bytes: [0; MESSAGE_MAX], got: 0, next: 0, heard: 0 }
    }

    /// The number of the message that is awaited.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    /// The number of this end's message that the peer awaits.
    pub(super) const fn heard(&self) -> u64 {
        self.heard
    }

    /// Forgets the part of a message that has arrived: it comes again, over a new stream.
    pub(super) fn renewed(&mut self) {
        if !is_planted(Mutant::KeepHalfMessage) {
            self.got = 0;
        }
    }

    /// Returns the next message that has arrived completely. `qps` is the number of the peer's queue
    /// pairs.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] at the end of the stream. [`Error::Unexpected`], [`Error::Preface`] or
    /// [`Error::QpInfo`] for bytes that are no message.
    pub(super) fn recv(
        &mut self,
        stream: &mut impl Stream,
        qps: u16,
    ) -> Result<Option<Control>, Error> {
        loop {
            let want = match self.bytes.first_chunk() {
                Some(&REPORT) if self.got >= HEAD_BYTES => REPORT_BYTES,
                Some(&VIEW) if self.got >= HEAD_BYTES => VIEW_MESSAGE_BYTES,
                Some(&RAILS) if self.got >= HEAD_BYTES => RAILS_BYTES,
                _ => HEAD_BYTES,
            };
            if self.got >= want {
                self.got = 0;
                if let Some(message) = self.parse(qps)? {
                    return Ok(Some(message));
                }
                continue;
            }
            match stream.recv(&mut self.bytes[self.got..want]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.got = want.min(self.got + n),
                Err(error) => return Err(Error::PeerClosed(error)),
            }
            let magic = &self.bytes[..self.got.min(CLOSE.len())];
            if !ALL.iter().any(|known| known.starts_with(magic)) {
                return Err(Error::Unexpected);
            }
        }
    }

    /// Reads the message that has arrived. Returns `None` if it had arrived before.
    fn parse(&mut self, qps: u16) -> Result<Option<Control>, Error> {
        let (head, body) =
            HeadBytes::ref_from_prefix(&self.bytes).map_err(|_| Error::Unexpected)?;
        self.heard = self.heard.max(head.heard.get());
        let number = head.number.get();
        if number < self.next {
            return Ok(None);
        }
        self.next = number.saturating_add(1);
        let value = head.value.get();
        let attempt = || u32::try_from(value).map_err(|_| Error::Unexpected);
        Ok(Some(match head.magic {
            CLOSE => Control::Close { rows_done: value },
            READY => Control::Ready { attempt: attempt()? },
            REPORT => {
                let (body, _) =
                    ReportBytes::ref_from_prefix(body).map_err(|_| Error::Unexpected)?;
                let preface = Preface::parse(&body.preface).map_err(Error::Preface)?;
                let info = QpInfo::parse(&body.info, usize::from(qps), false);
                let info = info.map_err(Error::QpInfo)?;
                let rows = body.rows.get();
                Control::Report(Report { attempt: attempt()?, rows, preface, info })
            }
            ASK => Control::Ask { rows: value },
            SEEN => Control::Seen { rows: value },
            RAILS => {
                let (body, _) =
                    RailsReportBytes::ref_from_prefix(body).map_err(|_| Error::Unexpected)?;
                Control::RailsReport(RailsReport::parse(attempt()?, body)?)
            }
            RAILS_UP => Control::RailsUp { rails: RailSet(value as u8) },
            FAILED => Control::Failed,
            VIEW => {
                let (view, _) = ViewBytes::ref_from_prefix(body).map_err(|_| Error::Unexpected)?;
                Control::View { view: EndView::parse(view), asks: value & 1 != 0 }
            }
            _ => return Err(Error::Unexpected),
        }))
    }
}

/// The error of a peer that has closed its end.
pub(super) const CLOSED: Error = Error::PeerClosed(StreamError::Closed);

#[cfg(test)]
mod tests {
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
            long_mtu_bytes: 0,
            rails: 1,
            rail: 0,
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
        Control::Report(Report { attempt, rows, preface, info })
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
            received.extend(reader.recv(stream, 3).unwrap());
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
                while let Some(message) = reader.recv(&mut stream, 3).unwrap() {
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
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), head in 0..8) {
            let mut stream = Slow { bytes: heapless::Deque::new(), credit: 700 };
            let head = [&CLOSE[..], &REPORT, &READY, &FAILED, &ASK, &SEEN, &VIEW, &[]][head as usize];
            head.iter().chain(&bytes).for_each(|byte| stream.bytes.push_back(*byte).unwrap());
            let mut reader = ControlReader::new();
            while let Ok(Some(_)) = reader.recv(&mut stream, 128) {}
        }
    }

    #[test]
    fn a_peer_that_has_heard_more_than_was_said_is_refused() {
        assert_eq!(ControlWriter::new().acknowledged(1), Err(Error::Unexpected));
    }
}
