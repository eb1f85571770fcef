//! An end's view of its direction of a connection, and its bytes on the wire.

use core::fmt;
use core::net::Ipv4Addr;

use static_assertions::assert_eq_size;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::other_wait::OtherPeer;
use crate::nic::NicCounters;

/// Bytes of a host's name in a view. A longer name is cut.
pub const HOST_BYTES: usize = 32;
/// Bytes of [`ViewBytes`].
pub const VIEW_BYTES: usize = size_of::<ViewBytes>();

/// A process, for people who must find it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Number of the process on its host; 0 if unknown.
    pub pid: u32,
    /// Name of the host, padded with zeros.
    pub host: [u8; HOST_BYTES],
}

/// The direction of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The end sends.
    Sender,
    /// The end receives.
    Receiver,
}

/// The call that the program at an end repeats, because the call could do nothing yet. A peer that does not know a
/// kind of wait takes it for none, so new kinds need no new version of the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// The program repeats no call.
    #[default]
    None,
    /// The program wants to send, and no receive matches.
    Send {
        /// Tag of the message.
        tag: u32,
        /// Bytes of the message.
        len: u32,
    },
    /// The program tests a request that is not done.
    Test,
    /// The program wants to post a receive, and no request is free.
    Recv,
    /// The program makes no call here. It waits for this peer on another connection of its process.
    Elsewhere(OtherPeer),
}

/// The knowledge of an end about its direction of a connection. By default nothing has begun at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndView {
    /// The process of the end.
    pub process: Process,
    /// Whether the end waits for something.
    pub is_waiting: bool,
    /// Whether the data of this end moves only during calls of its program.
    pub moves_in_calls: bool,
    /// Whether the end makes new queue pairs.
    pub is_recovering: bool,
    /// Whether the end makes them again, because the last new queue pairs have carried nothing.
    pub recovers_in_vain: bool,
    /// Number of receives that the sender has filled, or that the receiver has posted.
    pub begun: u64,
    /// Number of these that are acknowledged, or that have arrived.
    pub done: u64,
    /// For a sender: number of posted receives that it knows of. For a receiver over TCP: number of buffers
    /// that messages have met.
    pub seen: u64,
    /// For a sender: tag of the next receive that it knows of. For a receiver over TCP: tag of its oldest
    /// buffer that no message has met.
    pub seen_tag: u32,
    /// For a sender over TCP: tag of its oldest message that has met no buffer that the sender knows of.
    pub ahead_tag: Option<u32>,
    /// For a sender: number of sends that the group at its head still lacks.
    pub lacking: u32,
    /// Number of requests that are done and were not tested.
    pub untested: u32,
    /// Milliseconds for which the end has waited without progress.
    pub still_ms: u32,
    /// Milliseconds since the program's last call; `u32::MAX` if no call was seen.
    pub call_ms: u32,
    /// The call that the program repeats.
    pub wait: Wait,
}

/// The knowledge of one end about its network, which no message to the peer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnNetwork {
    /// Whether the peer's host acknowledges what this end sends over TCP, if that is known.
    pub host_answers: Option<bool>,
    /// The fault of this end's port, if it has one.
    pub port_trouble: Option<&'static str>,
    /// The rails of the connection that do not carry data although they could, a bit for each rail.
    pub rails_down: u8,
    /// The growth of the counters of this end's NIC during the stall, for all connections of the NIC, and the
    /// milliseconds in which they grew. `None` if the end has no NIC, or its NIC has no counters.
    pub counted: Option<(NicCounters, u32)>,
}

impl OwnNetwork {
    /// The knowledge of an end without a port of its own, as over TCP.
    pub fn of_host(host_answers: Option<bool>) -> Self {
        OwnNetwork { host_answers, ..OwnNetwork::default() }
    }
}

/// A view on the wire, little-endian. If the program waits elsewhere, the wait's tag is the other peer's process,
/// and the wait's length is its IPv4 address.
///
/// ```text
/// byte 0       8      16     24       28      32       36       40      44
///      +-------+------+------+--------+-------+--------+--------+-------+
///      | begun | done | seen | still  | call  | un-    | seen   | lack- |
///      |       |      |      | ms     | ms    | tested | tag    | ing   |
///      +-------+------+------+--------+-------+--------+--------+-------+
///      44         48         52      56    60      64     96
///      | wait tag | wait len | flags | pid | ahead | host |
///      |          |          |       |     | tag   |      |
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ViewBytes {
    begun: U64,
    done: U64,
    seen: U64,
    still_ms: U32,
    call_ms: U32,
    untested: U32,
    seen_tag: U32,
    lacking: U32,
    wait_tag: U32,
    wait_len: U32,
    flags: U32,
    pid: U32,
    ahead_tag: U32,
    host: [u8; HOST_BYTES],
}

assert_eq_size!(ViewBytes, [u8; 96]);

const IS_WAITING: u32 = 1;
const MOVES_IN_CALLS: u32 = 1 << 1;
const IS_RECOVERING: u32 = 1 << 2;
const IS_AHEAD: u32 = 1 << 3;
const RECOVERS_IN_VAIN: u32 = 1 << 4;
/// The lowest bit of the kind of wait, which has four bits.
const WAIT_SHIFT: u32 = 8;

impl EndView {
    /// Converts the view to the bytes of the wire.
    pub fn to_bytes(&self) -> ViewBytes {
        let (wait, wait_tag, wait_len) = match self.wait {
            Wait::None => (0, 0, 0),
            Wait::Send { tag, len } => (1, tag, len),
            Wait::Test => (2, 0, 0),
            Wait::Recv => (3, 0, 0),
            Wait::Elsewhere(OtherPeer { pid, ip }) => (4, pid, ip.to_bits()),
        };
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(self.is_waiting, IS_WAITING)
            | flag(self.moves_in_calls, MOVES_IN_CALLS)
            | flag(self.is_recovering, IS_RECOVERING)
            | flag(self.recovers_in_vain, RECOVERS_IN_VAIN)
            | flag(self.ahead_tag.is_some(), IS_AHEAD)
            | wait << WAIT_SHIFT;
        ViewBytes {
            begun: self.begun.into(),
            done: self.done.into(),
            seen: self.seen.into(),
            still_ms: self.still_ms.into(),
            call_ms: self.call_ms.into(),
            untested: self.untested.into(),
            seen_tag: self.seen_tag.into(),
            lacking: self.lacking.into(),
            wait_tag: wait_tag.into(),
            wait_len: wait_len.into(),
            flags: flags.into(),
            pid: self.process.pid.into(),
            ahead_tag: self.ahead_tag.unwrap_or(0).into(),
            host: self.process.host,
        }
    }

    /// Reads a peer's view. Any bytes are a view, since a view only informs people; an unknown kind of wait
    /// counts as none.
    pub fn parse(b: &ViewBytes) -> Self {
        let flags = b.flags.get();
        let wait = match flags >> WAIT_SHIFT & 15 {
            1 => Wait::Send { tag: b.wait_tag.get(), len: b.wait_len.get() },
            2 => Wait::Test,
            3 => Wait::Recv,
            4 => {
                let (pid, ip) = (b.wait_tag.get(), Ipv4Addr::from_bits(b.wait_len.get()));
                Wait::Elsewhere(OtherPeer { pid, ip })
            }
            _ => Wait::None,
        };
        EndView {
            process: Process { pid: b.pid.get(), host: b.host },
            is_waiting: flags & IS_WAITING != 0,
            moves_in_calls: flags & MOVES_IN_CALLS != 0,
            is_recovering: flags & IS_RECOVERING != 0,
            recovers_in_vain: flags & RECOVERS_IN_VAIN != 0,
            begun: b.begun.get(),
            done: b.done.get(),
            seen: b.seen.get(),
            seen_tag: b.seen_tag.get(),
            ahead_tag: (flags & IS_AHEAD != 0).then(|| b.ahead_tag.get()),
            lacking: b.lacking.get(),
            untested: b.untested.get(),
            still_ms: b.still_ms.get(),
            call_ms: b.call_ms.get(),
            wait,
        }
    }
}

impl Process {
    /// Names a process. The host's name is cut to the characters that fit.
    pub fn new(pid: u32, host: &str) -> Self {
        let mut bytes = [0; HOST_BYTES];
        let end = host.floor_char_boundary(HOST_BYTES);
        bytes[..end].copy_from_slice(&host.as_bytes()[..end]);
        Process { pid, host: bytes }
    }

    /// Displays the commands that show the process's stack.
    pub(crate) fn stack(self) -> impl fmt::Display {
        let pid = self.pid;
        fmt::from_fn(move |f| write!(f, "gdb -p {pid}, py-spy dump -p {pid}"))
    }
}

/// `pid 4711 on node7`. Characters that cannot be printed become question marks, because a peer chose them.
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == 0 {
            return f.write_str("process unknown");
        }
        write!(f, "pid {} on ", self.pid)?;
        let name = self.host.split(|&c| c == 0).next().unwrap_or_default();
        if name.is_empty() {
            return f.write_str("a host without a name");
        }
        for &c in name {
            let c = if c.is_ascii_graphic() { char::from(c) } else { '?' };
            fmt::Write::write_char(f, c)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_view_survives_the_wire_and_any_bytes_are_one(bytes: [[u8; 32]; 3]) {
            let bytes = bytes.concat();
            let view = EndView::parse(ViewBytes::ref_from_bytes(&bytes).unwrap());
            prop_assert_eq!(EndView::parse(&view.to_bytes()), view);
        }
    }

    #[test]
    fn a_process_is_named_by_number_and_host_whatever_the_peer_says() {
        assert_eq!(Process::new(7, "node1").to_string(), "pid 7 on node1");
        assert_eq!(Process::new(7, "").to_string(), "pid 7 on a host without a name");
        assert_eq!(Process::new(7, "a\x1b[2Jb").to_string(), "pid 7 on a?[2Jb");
        assert_eq!(Process::default().to_string(), "process unknown");
        let long = "ä".repeat(40);
        assert_eq!(Process::new(7, &long).host, *"ä".repeat(16).as_bytes());
    }
}
