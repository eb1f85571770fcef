//! Waits on other connections of a process. An end whose program waits elsewhere tells its peer for whom, so that
//! the verdict does not blame the program.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::sync::atomic::{AtomicU64, Ordering};

/// A note is valid for this time. The end that wrote it looks more often.
const VALID_NS: u64 = 4_000_000_000;

/// The peer of a connection, as the peers of other connections hear of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherPeer {
    /// Number of its process; 0 if unknown.
    pub pid: u32,
    /// IPv4 address of its host; unspecified if the host is reached over IPv6 only, or is unknown.
    pub ip: Ipv4Addr,
}

impl OtherPeer {
    /// Names a peer by its process and by its address on the out-of-band connection.
    pub(super) fn new(pid: u32, addr: Option<SocketAddr>) -> Self {
        let ip = match addr.map(|addr| addr.ip().to_canonical()) {
            Some(IpAddr::V4(ip)) => ip,
            _ => Ipv4Addr::UNSPECIFIED,
        };
        OtherPeer { pid, ip }
    }

    fn to_word(self) -> u64 {
        u64::from(self.pid) << 32 | u64::from(self.ip.to_bits())
    }

    fn of_word(word: u64) -> Self {
        OtherPeer { pid: (word >> 32) as u32, ip: Ipv4Addr::from_bits(word as u32) }
    }
}

/// `pid 4711 at 192.0.2.7`.
impl fmt::Display for OtherPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => f.write_str("another process")?,
            pid => write!(f, "pid {pid}")?,
        }
        if self.ip.is_unspecified() { Ok(()) } else { write!(f, " at {}", self.ip) }
    }
}

/// The longest wait of a process for a peer. All ends of the process share it.
///
/// The three words are not written as one. A reader that meets a writer may take the peer of one wait and the
/// time of another; a verdict then names another peer for which the process waits.
#[derive(Debug, Default)]
pub struct ProcessWait {
    peer: AtomicU64,
    since_ns: AtomicU64,
    noted_ns: AtomicU64,
}

/// A process has one such value, so two are equal only if they are one.
impl PartialEq for ProcessWait {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for ProcessWait {}

impl ProcessWait {
    /// Returns a value for a process that waits for nothing.
    pub const fn new() -> Self {
        let [peer, since_ns, noted_ns] = [const { AtomicU64::new(0) }; 3];
        ProcessWait { peer, since_ns, noted_ns }
    }

    /// Notes that the program has waited for `peer` since `since_ns`, unless another wait is longer.
    pub(super) fn note(&self, peer: OtherPeer, since_ns: u64, now_ns: u64) {
        if self.longest(now_ns).is_none_or(|(_, longest_ns)| since_ns <= longest_ns) {
            self.peer.store(peer.to_word(), Ordering::Relaxed);
            self.since_ns.store(since_ns, Ordering::Relaxed);
            self.noted_ns.store(now_ns.max(1), Ordering::Relaxed);
        }
    }

    /// Returns the peer of the longest wait, and when that wait began.
    pub(super) fn longest(&self, now_ns: u64) -> Option<(OtherPeer, u64)> {
        let noted_ns = self.noted_ns.load(Ordering::Relaxed);
        let is_valid = noted_ns > 0 && now_ns.saturating_sub(noted_ns) <= VALID_NS;
        let peer = OtherPeer::of_word(self.peer.load(Ordering::Relaxed));
        is_valid.then(|| (peer, self.since_ns.load(Ordering::Relaxed)))
    }
}
