//! The events of a record.

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::RecordError;

/// Bytes of an event.
pub const EVENT_BYTES: usize = size_of::<EventBytes>();

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The connection was made.
    Opened,
    /// Requests began, were done or were tested, within a second.
    Progress,
    /// The end began to wait for something.
    Waits,
    /// The end waits no longer.
    WaitsNot,
    /// Queue pairs failed, and new ones are being made.
    Recovery,
    /// New queue pairs work.
    Recovered,
    /// The user was told that the connection stands still.
    Stall,
    /// The connection has ended.
    Closed,
}

/// Something that happened at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time on the clock of the process, in nanoseconds; of progress the time of the first.
    pub at_ns: u64,
    /// The kind of the event.
    pub kind: EventKind,
    /// As in [`EndView::begun`](crate::stall::EndView::begun).
    pub begun: u64,
    /// As in [`EndView::done`](crate::stall::EndView::done).
    pub done: u64,
    /// As in [`EndView::untested`](crate::stall::EndView::untested).
    pub untested: u32,
}

/// ```text
/// byte 0      8       16     24         28     32
///      +------+-------+------+----------+------+
///      | time | begun | done | untested | kind |
///      +------+-------+------+----------+------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EventBytes {
    at_ns: U64,
    begun: U64,
    done: U64,
    untested: U32,
    kind: U32,
}

assert_eq_size!(EventBytes, [u8; 32]);

impl EventKind {
    pub(super) const ALL: [Self; 8] = [
        EventKind::Opened,
        EventKind::Progress,
        EventKind::Waits,
        EventKind::WaitsNot,
        EventKind::Recovery,
        EventKind::Recovered,
        EventKind::Stall,
        EventKind::Closed,
    ];

    /// A word for people.
    pub const fn name(self) -> &'static str {
        match self {
            EventKind::Opened => "opened",
            EventKind::Progress => "progress",
            EventKind::Waits => "waits",
            EventKind::WaitsNot => "waits no longer",
            EventKind::Recovery => "recovery begins",
            EventKind::Recovered => "recovered",
            EventKind::Stall => "stall reported",
            EventKind::Closed => "closed",
        }
    }
}

impl Event {
    pub(super) fn to_bytes(self) -> [u8; EVENT_BYTES] {
        transmute!(EventBytes {
            at_ns: self.at_ns.into(),
            begun: self.begun.into(),
            done: self.done.into(),
            untested: self.untested.into(),
            kind: (self.kind as u32).into(),
        })
    }

    pub(super) fn parse(bytes: &[u8; EVENT_BYTES]) -> Result<Self, RecordError> {
        let b: EventBytes = transmute!(*bytes);
        let code = b.kind.get();
        let kind = EventKind::ALL.into_iter().find(|kind| *kind as u32 == code);
        Ok(Event {
            at_ns: b.at_ns.get(),
            kind: kind.ok_or(RecordError::Field { what: "an event's kind", value: code.into() })?,
            begun: b.begun.get(),
            done: b.done.get(),
            untested: b.untested.get(),
        })
    }
}
