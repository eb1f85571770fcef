//! The messages that the two ends of a comm exchange over the stream after the handshake.
//!
//! - A closing receiver says which receives are complete. The NIC's acknowledge of the last message may
//!   be lost, and once the receiver's process has ended, nobody repeats that acknowledge. The kernel
//!   still delivers the stream.
//! - The two ends make new queue pairs after a failure; see [`super::recovery`].
//! - An end whose rows make no progress asks which of them have come; see `PathWatch` in [`crate::stall`].
//! - An end whose comm has failed says so, because its peer may wait for new queue pairs.
//! - An end that stands still asks the peer for its view; see [`stall`](crate::stall).
//!
//! Messages are numbered, and each message says how many of the peer's have arrived. So no message is lost
//! or taken twice where the stream is made anew; see [`super::line`]. A report replaces the messages before
//! it, so an end keeps few messages.

mod rails;
#[cfg(test)]
mod tests;

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
    Report(RecoveryReport),
    /// The report of an end whose connection has several rails.
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
pub(super) struct RecoveryReport {
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
            Control::Report(RecoveryReport { rows, preface, info, .. }) => {
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
    /// pairs. `budget` is the number of messages that may still be read now, those included that had arrived
    /// before: a peer that sends without end must not keep the caller.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] at the end of the stream. [`Error::Unexpected`], [`Error::Preface`] or
    /// [`Error::QpInfo`] for bytes that are no message.
    pub(super) fn recv(
        &mut self,
        stream: &mut impl Stream,
        qps: u16,
        budget: &mut u32,
    ) -> Result<Option<Control>, Error> {
        while *budget > 0 {
            let want = match self.bytes.first_chunk() {
                Some(&REPORT) if self.got >= HEAD_BYTES => REPORT_BYTES,
                Some(&VIEW) if self.got >= HEAD_BYTES => VIEW_MESSAGE_BYTES,
                Some(&RAILS) if self.got >= HEAD_BYTES => RAILS_BYTES,
                _ => HEAD_BYTES,
            };
            if self.got >= want {
                self.got = 0;
                *budget -= 1;
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
        Ok(None)
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
                Control::Report(RecoveryReport { attempt: attempt()?, rows, preface, info })
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
