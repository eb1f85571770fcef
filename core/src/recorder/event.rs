//! The events of a record.

use core::fmt;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, transmute};

use super::RecordError;
use crate::error::status_name;
use crate::nic::WcStatus;

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
    /// The end has failed. The detail is the status of the completion, or 0.
    Error,
    /// The queue pairs of the end are stopped, so that nothing of the peer arrives any more. The detail is the
    /// number of the attempt that follows.
    Fence,
    /// A rail carries no data any more. The detail is the rail.
    RailDown,
    /// A rail carries data again. The detail is the rail.
    RailUp,
}

/// Something that happened at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time on the clock of the process, in nanoseconds; of progress the time of the first.
    pub at_ns: u64,
    /// The kind of the event.
    pub kind: EventKind,
    /// Number of receives that the sender has filled, or that the receiver has posted.
    pub begun: u64,
    /// Number of these that are acknowledged, or that have arrived.
    pub done: u64,
    /// Number of requests that are done and were not tested.
    pub untested: u32,
    /// A number that depends on the kind; 0 if the kind has none.
    pub detail: u16,
}

/// ```text
/// byte 0      8       16     24         28     30       32
///      +------+-------+------+----------+------+--------+
///      | time | begun | done | untested | kind | detail |
///      +------+-------+------+----------+------+--------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EventBytes {
    at_ns: U64,
    begun: U64,
    done: U64,
    untested: U32,
    kind: U16,
    detail: U16,
}

assert_eq_size!(EventBytes, [u8; 32]);

impl EventKind {
    pub(super) const ALL: [Self; 12] = [
        EventKind::Opened,
        EventKind::Progress,
        EventKind::Waits,
        EventKind::WaitsNot,
        EventKind::Recovery,
        EventKind::Recovered,
        EventKind::Stall,
        EventKind::Closed,
        EventKind::Error,
        EventKind::Fence,
        EventKind::RailDown,
        EventKind::RailUp,
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
            EventKind::Error => "error",
            EventKind::Fence => "fence",
            EventKind::RailDown => "rail down",
            EventKind::RailUp => "rail up",
        }
    }
}

/// The kind, and the detail if there is one: `rail down 2`, `error IBV_WC_RETRY_EXC_ERR`.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { kind, detail, .. } = self;
        f.write_str(kind.name())?;
        match kind {
            EventKind::Error if *detail == 0 => Ok(()),
            EventKind::Error => write!(f, " {}", status_name(WcStatus((*detail).into()))),
            EventKind::Fence | EventKind::RailDown | EventKind::RailUp => write!(f, " {detail}"),
            _ => Ok(()),
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
            kind: (self.kind as u16).into(),
            detail: self.detail.into(),
        })
    }

    pub(super) fn parse(bytes: &[u8; EVENT_BYTES]) -> Result<Self, RecordError> {
        let b: EventBytes = transmute!(*bytes);
        let code = b.kind.get();
        let kind = EventKind::ALL.into_iter().find(|kind| *kind as u16 == code);
        Ok(Event {
            at_ns: b.at_ns.get(),
            kind: kind.ok_or(RecordError::Field { what: "an event's kind", value: code.into() })?,
            begun: b.begun.get(),
            done: b.done.get(),
            untested: b.untested.get(),
            detail: b.detail.get(),
        })
    }
}
