//! The messages that the two ends of a comm exchange over the stream after the handshake.
//!
//! - A closing receiver says which receives are complete. The NIC's acknowledge of the last message may
//!   be lost, and once the receiver's process has ended, nobody repeats that acknowledge. The kernel
//!   still delivers the stream.
//! - The two ends make new queue pairs after a failure; see [`super::recovery`].
//! - An end whose comm has failed says so, because its peer may wait for new queue pairs.
//! - An end that stands still asks the peer for its view, if both ends exchange views; see
//!   [`stall`](crate::stall).

mod rails;

use static_assertions::{assert_eq_size, const_assert};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::conn::wire::{
    MESSAGE_BYTES_MAX, PREFACE_BYTES, Preface, PrefaceBytes, QP_INFO_BYTES, QpInfo, QpInfoBytes,
};
use crate::conn::{RailSet, Stream, StreamError};
use crate::error::Error;
use crate::stall::{EndView, VIEW_BYTES, ViewBytes};
use rails::{RAILS_REPORT_BYTES, RailsReportBytes};

pub(super) use rails::{RailEnd, RailsReport, RowSet};

/// The head of each message, little-endian.
///
/// ```text
/// byte 0       8       16
///      +-------+-------+
///      | magic | value |
///      +-------+-------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeadBytes {
    magic: [u8; 8],
    value: U64,
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
/// Bytes of a [`Control::View`], whose body is a [`ViewBytes`].
const VIEW_MESSAGE_BYTES: usize = HEAD_BYTES + VIEW_BYTES;
const RAILS_BYTES: usize = HEAD_BYTES + RAILS_REPORT_BYTES;
/// Bytes of the longest message.
const MESSAGE_MAX: usize = RAILS_BYTES;

const_assert!(REPORT_BYTES <= MESSAGE_MAX);

assert_eq_size!(HeadBytes, [u8; 16]);
assert_eq_size!(ReportBytes, [u8; 8 + PREFACE_BYTES + QP_INFO_BYTES]);
assert_eq_size!([u8; size_of::<ReportBytes>()], [u8; 8 + MESSAGE_BYTES_MAX]);

const CLOSE: [u8; 8] = *b"\x89CLOSE\r\n";
const REPORT: [u8; 8] = *b"\x89AGAIN\r\n";
const RAILS: [u8; 8] = *b"\x89RAILS\r\n";
const RAILS_UP: [u8; 8] = *b"\x89PORTS\r\n";
const READY: [u8; 8] = *b"\x89READY\r\n";
const FAILED: [u8; 8] = *b"\x89ENDED\r\n";
const VIEW: [u8; 8] = *b"\x89STUCK\r\n";
/// The value in the head of a view that asks for the peer's view.
const ASKS: u64 = 1;
/// All messages.
const KNOWN: [[u8; 8]; 7] = [CLOSE, REPORT, RAILS, RAILS_UP, READY, FAILED, VIEW];

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

/// Sends messages over the stream of a comm.
pub(super) struct ControlWriter {
    out: heapless::Vec<u8, { 2 * MESSAGE_MAX }>,
}

/// Receives messages from the stream of a comm.
pub(super) struct ControlReader {
    bytes: [u8; MESSAGE_MAX],
    got: usize,
}

impl ControlWriter {
    pub(super) const fn new() -> Self {
        ControlWriter { out: heapless::Vec::new() }
    }

    /// Sends a message, or as much of it as the stream takes now. [`ControlWriter::flush`] sends the
    /// rest. Returns `false` if earlier messages fill the buffer, because the peer reads nothing.
    pub(super) fn send(&mut self, stream: &mut impl Stream, message: &Control) -> bool {
        let (magic, value) = match message {
            Control::Close { rows_done } => (CLOSE, *rows_done),
            Control::Report(report) => (REPORT, report.attempt.into()),
            Control::RailsReport(report) => (RAILS, report.attempt.into()),
            Control::RailsUp { rails } => (RAILS_UP, rails.0.into()),
            Control::Ready { attempt } => (READY, (*attempt).into()),
            Control::Failed => (FAILED, 0),
            Control::View { asks, .. } => (VIEW, u64::from(*asks) * ASKS),
        };
        let head = HeadBytes { magic, value: value.into() };
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
        let has_room = self.out.len() + HEAD_BYTES + body.len() <= self.out.capacity();
        if has_room {
            let _ = self.out.extend_from_slice(head.as_bytes());
            let _ = self.out.extend_from_slice(body);
        }
        self.flush(stream);
        has_room
    }

    /// Whether the stream has taken all messages.
    pub(super) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    /// Sends what the stream takes. If the stream has ended, the reader notices it.
    pub(super) fn flush(&mut self, stream: &mut impl Stream) {
        while !self.out.is_empty()
            && let Ok(sent @ 1..) = stream.send(&self.out)
        {
            let sent = sent.min(self.out.len());
            self.out.rotate_left(sent);
            self.out.truncate(self.out.len() - sent);
        }
    }
}

impl ControlReader {
    pub(super) const fn new() -> Self {
        ControlReader { bytes: [0; MESSAGE_MAX], got: 0 }
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
                return self.parse(qps).map(Some);
            }
            match stream.recv(&mut self.bytes[self.got..want]) {
                Ok(0) => return Ok(None),
                Ok(n) => self.got = want.min(self.got + n),
                Err(error) => return Err(Error::PeerClosed(error)),
            }
            let magic = &self.bytes[..self.got.min(CLOSE.len())];
            if !KNOWN.iter().any(|known| known.starts_with(magic)) {
                return Err(Error::Unexpected);
            }
        }
    }

    fn parse(&self, qps: u16) -> Result<Control, Error> {
        let (head, body) =
            HeadBytes::ref_from_prefix(&self.bytes).map_err(|_| Error::Unexpected)?;
        let value = head.value.get();
        let attempt = || u32::try_from(value).map_err(|_| Error::Unexpected);
        Ok(match head.magic {
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
            RAILS => {
                let body = body.get(..RAILS_REPORT_BYTES).ok_or(Error::Unexpected)?;
                let body = RailsReportBytes::ref_from_bytes(body);
                let body = body.map_err(|_| Error::Unexpected)?;
                Control::RailsReport(RailsReport::parse(attempt()?, body)?)
            }
            RAILS_UP => Control::RailsUp { rails: RailSet(value as u8) },
            FAILED => Control::Failed,
            VIEW => {
                let (view, _) = ViewBytes::ref_from_prefix(body).map_err(|_| Error::Unexpected)?;
                Control::View { view: EndView::parse(view), asks: value & ASKS != 0 }
            }
            _ => return Err(Error::Unexpected),
        })
    }
}

/// The error of a peer that has closed its end.
pub(super) const CLOSED: Error = Error::PeerClosed(StreamError::Closed);

#[cfg(test)]
mod tests {
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
            (any::<bool>(), any::<[[u8; 32]; 3]>()).prop_map(|(asks, bytes)| {
                let bytes = bytes.concat();
                let view = EndView::parse(ViewBytes::ref_from_bytes(&bytes).unwrap());
                Control::View { view, asks }
            }),
            (any::<u32>(), any::<u64>()).prop_map(|(attempt, rows)| report(attempt, rows, 3)),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_a_stream_that_moves_few_bytes_at_once(
            sent in prop::collection::vec(any_control(), 1..4), credit in 1usize..2000,
        ) {
            let mut stream = Slow { bytes: heapless::Deque::new(), credit };
            let (mut writer, mut reader) = (ControlWriter::new(), ControlReader::new());
            for message in &sent {
                let is_taken = writer.send(&mut stream, message);
                prop_assert!(is_taken || sent.len() > 2);
                if !is_taken {
                    return Ok(());
                }
            }
            for message in sent {
                let mut received = None;
                for _ in 0..2000 {
                    writer.flush(&mut stream);
                    received = reader.recv(&mut stream, 3).unwrap();
                    if received.is_some() {
                        break;
                    }
                }
                prop_assert_eq!(received, Some(message));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), head in 0..6) {
            let mut stream = Slow { bytes: heapless::Deque::new(), credit: 700 };
            let head = [&CLOSE[..], &REPORT, &READY, &FAILED, &VIEW, &[]][head as usize];
            head.iter().chain(&bytes).for_each(|byte| stream.bytes.push_back(*byte).unwrap());
            let mut reader = ControlReader::new();
            while let Ok(Some(_)) = reader.recv(&mut stream, 128) {}
        }
    }
}
