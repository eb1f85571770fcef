//! The flight recorder: what an end did last, in a block of bytes that outlives its process.
//!
//! A [`Record`] is fed with the end's [`EndView`] now and then, and keeps the changes as [`Event`]s. A host
//! writes the record to a file after each change; see [`Record::to_bytes`]. A [`RankRecord`] keeps the operations
//! of a rank of a communicator in the same file. A [`MessageRing`] keeps the times of an end's last messages, which
//! the host may copy to the record.

mod event;
mod message;
mod rank;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::metrics::{BUCKETS, EndNumbers, Histogram, MemoryNumbers};
use crate::nic::NicCounters;
use crate::peer_clock::PeerClock;
use crate::stall::{EndView, Process, Role, VIEW_BYTES, ViewBytes};
use message::{MESSAGES_BYTES, MessagesBytes};

pub use event::{EVENT_BYTES, Event, EventKind};
pub use message::{MESSAGES, MessageRing, MessageTimes};
pub use rank::{
    OPERATION_TEXT_BYTES, OPERATIONS, RANK_RECORD_BYTES, RankOperation, RankRecord, RankWait,
};

/// Bytes of a record without messages, which are a page of its file.
pub const RECORD_BYTES: usize = size_of::<RecordBytes>();
/// Bytes of a record with messages.
pub const RECORD_BYTES_MAX: usize = RECORD_BYTES + MESSAGES_BYTES;
/// Bytes of a file's header.
pub const HEADER_BYTES: usize = size_of::<HeaderBytes>();
/// Place of the process' numbers in a file's header, which its process writes anew when they have changed.
pub const NUMBERS_AT: usize = core::mem::offset_of!(HeaderBytes, memory);
/// Number of events that a record keeps.
pub const EVENTS: usize = 64;
/// Bytes of the description of both ends. A longer description is cut.
pub const ENDS_BYTES: usize = 256;
/// Bytes of the name of a device, and of the address of a peer. Longer texts are cut.
pub const NAME_BYTES: usize = 64;
/// Bytes of the last verdict. A longer text is cut.
pub const VERDICT_BYTES: usize = 704;
/// Progress within this time is one event.
const MERGE_NS: u64 = 1_000_000_000;

/// How a record says that the peer's clock is unknown.
const NO_CLOCK: PeerClock = PeerClock { ahead_ns: 0, uncertainty_ns: u64::MAX };

const MAGIC: [u8; 8] = *b"INVARREC";
const VERSION: u32 = 7;

/// The header of a file of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The process that wrote the file.
    pub process: Process,
    /// Nanoseconds of the clock of the events at the Unix epoch's zero; add them to an event's time.
    pub unix_offset_ns: i64,
    /// Counts of memory that the process has registered and staged.
    pub memory: MemoryNumbers,
}

/// ```text
/// byte 0       8         12    16            24     56       80
///      +-------+---------+-----+-------------+------+---------+
///      | magic | version | pid | unix offset | host | numbers |
///      +-------+---------+-----+-------------+------+---------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct HeaderBytes {
    magic: [u8; 8],
    version: U32,
    pid: U32,
    unix_offset_ns: I64,
    host: [u8; 32],
    memory: [U64; 3],
}

assert_eq_size!(HeaderBytes, [u8; 80]);

/// The record of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Direction of the end.
    pub role: Role,
    /// Number of the end's first queue pair; 0 over TCP.
    pub qpn: u32,
    /// Time of the last look, as in [`Event::at_ns`].
    pub looked_ns: u64,
    /// Names of both ends.
    pub ends: heapless::String<ENDS_BYTES>,
    /// Name of this end's device.
    pub device: heapless::String<NAME_BYTES>,
    /// The peer's address, without a port.
    pub peer: heapless::String<NAME_BYTES>,
    /// The number by which both ends know the connection; 0 if the wire has none.
    pub number: u64,
    /// The peer's clock, compared with the clock of the events, if this end has called.
    pub peer_clock: Option<PeerClock>,
    /// The view at the last look.
    pub view: EndView,
    /// The end's numbers at the last look.
    pub numbers: EndNumbers,
    /// Number of rails; 0 if the end has none.
    pub rail_count: u8,
    /// The rails that do not work, a bit for each rail.
    pub rails_down: u8,
    /// Number of times that a rail carried data and then carried none.
    pub failovers: u64,
    /// The counters of the end's device, some seconds old at most.
    pub nic: NicCounters,
    /// The last verdict on a stall; empty if there was none.
    pub verdict: heapless::String<VERDICT_BYTES>,
    /// The last events, oldest first.
    pub events: heapless::Deque<Event, EVENTS>,
    /// The last messages, oldest first; empty if their times are not kept.
    pub messages: heapless::Vec<MessageTimes, MESSAGES>,
}

/// ```text
/// byte 0      8          12    14        16     24     280    376       1080     3128
///      +------+----------+-----+---------+------+------+------+---------+--------+
///      | turn | number   | role| number  | look | ends | view | verdict | events |
///      |      | of the QP|     | of      | ed   |      |      |         |        |
///      |      |          |     | events  |      |      |      |         |        |
///      +------+----------+-----+---------+------+------+------+---------+--------+
///      3128     3192   3256    3296      3688       3768     3776    3784      3792    3796   3800    3808
///      | device | peer | end's | latency | device's | number | ahead | within  | number | rails | fail- |
///      |        |      | num-  | buckets | counters |        |       |         | of     | down  | overs |
///      |        |      | bers  |         |          |        |       |         | rails  |       |       |
///      3808                 3816     4088   4096
///      | number of messages | unused | turn |
/// ```
///
/// The peer's clock is ahead by `ahead`, give or take `within`; the latter has all bits set if that is unknown. If
/// there are messages, [`MessagesBytes`] follow on a page of their own.
///
/// Both turns are equal unless the writer is at work.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RecordBytes {
    turn: U64,
    qpn: U32,
    role: U16,
    events_len: U16,
    looked_ns: U64,
    ends: [u8; ENDS_BYTES],
    view: ViewBytes,
    verdict: [u8; VERDICT_BYTES],
    events: [[u8; EVENT_BYTES]; EVENTS],
    device: [u8; NAME_BYTES],
    peer: [u8; NAME_BYTES],
    bytes: U64,
    recoveries: U64,
    stalls: U64,
    receive_wait_ns: U64,
    latency_sum_ns: U64,
    latency: [U64; BUCKETS],
    nic: [U64; NicCounters::COUNT],
    number: U64,
    clock_ahead_ns: I64,
    clock_within_ns: U64,
    rail_count: U32,
    rails_down: U32,
    failovers: U64,
    messages_len: U64,
    _unused: [u8; 272],
    turn_again: U64,
}

assert_eq_size!(RecordBytes, [u8; 4096]);
assert_eq_size!(ViewBytes, [u8; VIEW_BYTES]);

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes are no file of a flight recorder.
    #[error("it is no file of Invar's flight recorder")]
    Magic,
    /// The file is of another version.
    #[error(
        "it is of version {0} of the recorder's file, and this program reads version {VERSION}"
    )]
    Version(u32),
    /// The bytes end too early.
    #[error("it ends in the middle: {0} bytes are there")]
    Short(usize),
    /// The writer was at work, or was killed meanwhile.
    #[error("it was being written")]
    Torn,
    /// A field has an impossible value.
    #[error("{what} is {value}, which cannot be")]
    Field {
        /// Name of the field, for the message.
        what: &'static str,
        /// The value that the field has.
        value: u64,
    },
}

impl Header {
    /// Converts the header to bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(HeaderBytes {
            magic: MAGIC,
            version: VERSION.into(),
            pid: self.process.pid.into(),
            unix_offset_ns: self.unix_offset_ns.into(),
            host: self.process.host,
            memory: self.memory.words(),
        })
    }

    /// Reads the header at the start of a file.
    ///
    /// # Errors
    /// The bytes are not of a file of this version.
    pub fn parse(bytes: &[u8]) -> Result<Self, RecordError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(RecordError::Magic);
        }
        let (b, _) =
            HeaderBytes::read_from_prefix(bytes).map_err(|_| RecordError::Short(bytes.len()))?;
        match b.version.get() {
            VERSION => Ok(Header {
                process: Process { pid: b.pid.get(), host: b.host },
                unix_offset_ns: b.unix_offset_ns.get(),
                memory: MemoryNumbers::of(b.memory),
            }),
            other => Err(RecordError::Version(other)),
        }
    }
}

impl MemoryNumbers {
    /// Converts the numbers to bytes, for [`NUMBERS_AT`].
    pub fn to_bytes(self) -> [u8; 24] {
        zerocopy::transmute!(self.words())
    }

    fn words(self) -> [U64; 3] {
        let MemoryNumbers { registrations, registration_hits, staged_bytes } = self;
        [registrations, registration_hits, staged_bytes].map(U64::from)
    }

    fn of(words: [U64; 3]) -> Self {
        let [registrations, registration_hits, staged_bytes] = words.map(U64::get);
        MemoryNumbers { registrations, registration_hits, staged_bytes }
    }
}

impl Record {
    /// Begins the record of an end that has just connected.
    pub fn new(role: Role, qpn: u32, ends: &str, view: EndView, now_ns: u64) -> Self {
        let mut record = Record {
            role,
            qpn,
            looked_ns: now_ns,
            ends: cut(ends),
            device: heapless::String::new(),
            peer: heapless::String::new(),
            number: 0,
            peer_clock: None,
            view,
            numbers: EndNumbers::default(),
            rail_count: 0,
            rails_down: 0,
            failovers: 0,
            nic: NicCounters::default(),
            verdict: heapless::String::new(),
            events: heapless::Deque::new(),
            messages: heapless::Vec::new(),
        };
        record.push(EventKind::Opened, 0, now_ns);
        record
    }

    /// Names the device of the end, and the peer's address.
    pub fn name(&mut self, device: &str, peer: &str) {
        (self.device, self.peer) = (cut(device), cut(peer));
    }

    /// Takes the view of a look, and notes what has changed. Returns whether anything has.
    pub fn look(&mut self, view: EndView, now_ns: u64) -> bool {
        let old = core::mem::replace(&mut self.view, view);
        self.looked_ns = now_ns;
        let numbers = |view: &EndView| (view.begun, view.done, view.untested);
        let mut has_changed = false;
        if numbers(&old) != numbers(&view) {
            self.progress(now_ns);
            has_changed = true;
        }
        let edges = [
            (old.is_recovering, view.is_recovering, EventKind::Recovery, EventKind::Recovered),
            (old.is_waiting, view.is_waiting, EventKind::Waits, EventKind::WaitsNot),
        ];
        for (old, new, begins, ends) in edges {
            if old != new {
                self.push(if new { begins } else { ends }, 0, now_ns);
                has_changed = true;
            }
        }
        has_changed
    }

    /// Notes that the user was told of a stall.
    pub fn stall(&mut self, verdict: &str, now_ns: u64) {
        self.verdict = cut(verdict);
        self.push(EventKind::Stall, 0, now_ns);
    }

    /// Takes the times of the last messages, oldest first, at most [`MESSAGES`].
    pub fn note_messages(&mut self, messages: &[MessageTimes]) {
        self.messages = messages.iter().copied().take(MESSAGES).collect();
    }

    /// Notes that the connection has ended.
    pub fn closed(&mut self, now_ns: u64) {
        self.push(EventKind::Closed, 0, now_ns);
    }

    /// Notes progress, in the last event if that is one of progress and young.
    fn progress(&mut self, now_ns: u64) {
        let EndView { begun, done, untested, .. } = self.view;
        match self.events.back_mut() {
            Some(last)
                if last.kind == EventKind::Progress
                    && now_ns.saturating_sub(last.at_ns) < MERGE_NS =>
            {
                (last.begun, last.done, last.untested) = (begun, done, untested);
            }
            _ => self.push(EventKind::Progress, 0, now_ns),
        }
    }

    /// Adds an event. The oldest one goes if there are too many.
    pub fn push(&mut self, kind: EventKind, detail: u16, at_ns: u64) {
        let EndView { begun, done, untested, .. } = self.view;
        self.failovers += u64::from(kind == EventKind::RailDown);
        if self.events.is_full() {
            self.events.pop_front();
        }
        // There is room now.
        let _ = self.events.push_back(Event { at_ns, kind, begun, done, untested, detail });
    }

    /// Converts the record to bytes: [`RECORD_BYTES`], or [`RECORD_BYTES_MAX`] if it has messages. `turn` is another
    /// number for each write.
    pub fn to_bytes(&self, turn: u64) -> heapless::Vec<u8, RECORD_BYTES_MAX> {
        let mut b = RecordBytes::new_zeroed();
        (b.turn, b.turn_again) = (turn.into(), turn.into());
        b.qpn = self.qpn.into();
        b.role = match self.role {
            Role::Sender => 1,
            Role::Receiver => 2,
        }
        .into();
        b.events_len = (self.events.len() as u16).into();
        b.looked_ns = self.looked_ns.into();
        b.ends[..self.ends.len()].copy_from_slice(self.ends.as_bytes());
        b.view = self.view.to_bytes();
        b.verdict[..self.verdict.len()].copy_from_slice(self.verdict.as_bytes());
        for (to, event) in b.events.iter_mut().zip(&self.events) {
            *to = event.to_bytes();
        }
        b.device[..self.device.len()].copy_from_slice(self.device.as_bytes());
        b.peer[..self.peer.len()].copy_from_slice(self.peer.as_bytes());
        let EndNumbers { bytes, recoveries, stalls, receive_wait_ns, latency } = self.numbers;
        (b.bytes, b.recoveries, b.stalls) = (bytes.into(), recoveries.into(), stalls.into());
        (b.receive_wait_ns, b.latency_sum_ns) = (receive_wait_ns.into(), latency.sum_ns.into());
        b.latency = latency.counts.map(U64::from);
        b.nic = self.nic.to_array().map(U64::from);
        b.number = self.number.into();
        let clock = self.peer_clock.unwrap_or(NO_CLOCK);
        b.clock_ahead_ns = clock.ahead_ns.into();
        b.clock_within_ns = clock.uncertainty_ns.into();
        b.rail_count = u32::from(self.rail_count).into();
        b.rails_down = u32::from(self.rails_down).into();
        b.failovers = self.failovers.into();
        b.messages_len = (self.messages.len() as u64).into();
        let mut bytes: heapless::Vec<u8, RECORD_BYTES_MAX> = heapless::Vec::new();
        // There is room for both parts.
        let _ = bytes.extend_from_slice(b.as_bytes());
        if !self.messages.is_empty() {
            let _ = bytes.extend_from_slice(MessagesBytes::new(&self.messages, turn).as_bytes());
        }
        bytes
    }

    /// Whether messages follow the first [`RECORD_BYTES`] of a record.
    pub fn has_messages(bytes: &[u8]) -> bool {
        let record = RecordBytes::ref_from_prefix(bytes);
        !RankRecord::is_one(bytes) && record.is_ok_and(|(b, _)| b.messages_len.get() != 0)
    }

    /// Reads a record; `None` if nothing was ever written there. From [`RECORD_BYTES`] it reads a record without its
    /// messages. Text that cannot be printed becomes question marks.
    ///
    /// # Errors
    /// The bytes are no record.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, RecordError> {
        let short = || RecordError::Short(bytes.len());
        let (b, rest) = RecordBytes::ref_from_prefix(bytes).map_err(|_| short())?;
        let turn = b.turn.get();
        if turn != b.turn_again.get() {
            return Err(RecordError::Torn);
        }
        let role = match b.role.get() {
            0 if turn == 0 => return Ok(None),
            1 => Role::Sender,
            2 => Role::Receiver,
            other => return Err(RecordError::Field { what: "the role", value: other.into() }),
        };
        let len = usize::from(b.events_len.get());
        let Some(events) = b.events.get(..len) else {
            let what = "the number of events";
            return Err(RecordError::Field { what, value: len as u64 });
        };
        let messages = match b.messages_len.get() {
            len if len == 0 || rest.is_empty() => heapless::Vec::new(),
            len => {
                let (b, _) = MessagesBytes::ref_from_prefix(rest).map_err(|_| short())?;
                b.parse(len, turn)?
            }
        };
        let clock =
            PeerClock { ahead_ns: b.clock_ahead_ns.get(), uncertainty_ns: b.clock_within_ns.get() };
        let mut record = Record {
            role,
            qpn: b.qpn.get(),
            looked_ns: b.looked_ns.get(),
            ends: text(&b.ends),
            device: text(&b.device),
            peer: text(&b.peer),
            number: b.number.get(),
            peer_clock: Some(clock).filter(|clock| clock.uncertainty_ns != u64::MAX),
            view: EndView::parse(&b.view),
            numbers: EndNumbers {
                bytes: b.bytes.get(),
                recoveries: b.recoveries.get(),
                stalls: b.stalls.get(),
                receive_wait_ns: b.receive_wait_ns.get(),
                latency: Histogram {
                    counts: b.latency.map(U64::get),
                    sum_ns: b.latency_sum_ns.get(),
                },
            },
            rail_count: b.rail_count.get() as u8,
            rails_down: b.rails_down.get() as u8,
            failovers: b.failovers.get(),
            nic: NicCounters::from_array(b.nic.map(U64::get)),
            verdict: text(&b.verdict),
            events: heapless::Deque::new(),
            messages,
        };
        for event in events {
            // As many fit as a record has.
            let _ = record.events.push_back(Event::parse(event)?);
        }
        Ok(Some(record))
    }
}

/// Cuts a text to the characters that fit.
fn cut<const N: usize>(text: &str) -> heapless::String<N> {
    let end = text.floor_char_boundary(N);
    heapless::String::try_from(&text[..end]).unwrap_or_default()
}

fn text<const N: usize>(bytes: &[u8; N]) -> heapless::String<N> {
    let bytes = bytes.split(|&c| c == 0).next().unwrap_or_default();
    let printable = |&c: &u8| if matches!(c, b' '..=b'~') { char::from(c) } else { '?' };
    bytes.iter().map(printable).collect()
}

#[cfg(test)]
mod tests;
