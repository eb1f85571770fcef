//! Chooses the number of sockets and threads of a connection, and spreads long messages over the
//! lanes.

/// Maximum number of lanes: the sockets that carry long messages (`net_socket.cc MAX_SOCKETS`).
pub const LANES_MAX: usize = 64;

/// Maximum number of helper threads of a connection (`net_socket.cc MAX_THREADS`).
const THREADS_MAX: usize = 16;

/// Minimum length of a chunk in bytes (`net_socket.cc MIN_CHUNKSIZE`). A message up to this length
/// goes over the main socket.
pub const CHUNK_BYTES_MIN: u32 = 64 << 10;

/// PCI vendors whose network cards need several flows to reach their full speed.
const AWS: &str = "0x1d0f";
const GCP: &str = "0x1ae0";

/// Number of CPUs without helper threads: one for the caller, and one for the rest of the program.
const CPUS_KEPT: usize = 2;

/// Number of sockets and helper threads of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Number of lanes, the sockets for long messages. With 0, everything goes over the main socket.
    /// The connector's number applies to both ends.
    pub lanes: u16,
    /// Number of helper threads that move bytes over the lanes. With 0, the caller moves them.
    pub threads: u16,
}

impl Layout {
    /// Chooses the layout from `NCCL_SOCKET_NTHREADS` and `NCCL_NSOCKS_PERTHREAD`. `None` means
    /// automatic. Then the network card's PCI vendor decides, written as sysfs writes it
    /// (`net_socket.cc ncclNetSocketGetNsockNthread`).
    ///
    /// The number of sockets is NCCL's: a number that is too large gives a warning and is cut. There
    /// are never more threads than free CPUs beside the caller. Threads that share a CPU only make
    /// each other wait.
    pub fn choose(
        threads: Option<u32>,
        sockets_per_thread: Option<u32>,
        pci_vendor: Option<&str>,
        cpus: usize,
    ) -> Layout {
        let (auto_threads, auto_sockets) = match pci_vendor {
            Some(AWS) => (2, 8),
            Some(GCP) => (4, 1),
            _ => (0, 1),
        };
        let mut threads = threads.map_or(auto_threads, |threads| threads as usize);
        if threads > THREADS_MAX {
            warn!(
                "NCCL_SOCKET_NTHREADS={threads} is more than {THREADS_MAX} threads: {THREADS_MAX} \
                 are used"
            );
            threads = THREADS_MAX;
        }
        let mut sockets = sockets_per_thread.map_or(auto_sockets, |sockets| sockets as usize);
        let most = LANES_MAX / threads.max(1);
        if threads > 0 && sockets > most {
            warn!(
                "NCCL_NSOCKS_PERTHREAD={sockets} on {threads} threads is more than {LANES_MAX} \
                 sockets: {most} on each are used"
            );
            sockets = most;
        }
        let lanes = threads * sockets;
        let threads = threads.min(lanes).min(cpus.saturating_sub(CPUS_KEPT));
        Layout { lanes: lanes as u16, threads: threads as u16 }
    }
}

/// Iterator over the parts of a message and their lanes, in order. All chunks but the last have the
/// same length, at least [`CHUNK_BYTES_MIN`]. A message that the main socket carries has no chunks.
///
/// Both ends compute the chunks, so each end knows what comes next on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    len: u32,
    chunk_bytes: u32,
    offset: u32,
    lane: u16,
    lanes: u16,
}

/// One part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketChunk {
    /// Number of the lane that carries the chunk.
    pub lane: u16,
    /// Offset of the first byte in the message.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Chunks {
    /// Cuts a message of `len` bytes into chunks over `lanes` lanes, starting at lane `first`.
    pub(super) fn new(len: u32, lanes: u16, first: u16) -> Self {
        let chunk_bytes = len.div_ceil(u32::from(lanes.max(1))).max(CHUNK_BYTES_MIN);
        // A message that the main socket carries has no chunks.
        let offset = if is_long(len, lanes) { 0 } else { len };
        Chunks { len, chunk_bytes, offset, lane: first, lanes }
    }

    /// Lane behind that of the last chunk, at which the next message starts.
    pub(super) fn lane_after(&self) -> u16 {
        (self.lane + self.left() as u16) % self.lanes.max(1)
    }

    /// Number of chunks that are left.
    pub(super) fn left(&self) -> u32 {
        (self.len - self.offset).div_ceil(self.chunk_bytes)
    }
}

impl Iterator for Chunks {
    type Item = SocketChunk;

    fn next(&mut self) -> Option<SocketChunk> {
        let len = self.chunk_bytes.min(self.len - self.offset);
        if len == 0 {
            return None;
        }
        let chunk = SocketChunk { lane: self.lane, offset: self.offset, len };
        self.offset += len;
        self.lane = (self.lane + 1) % self.lanes;
        Some(chunk)
    }
}

/// Returns whether a message goes over the lanes.
pub(super) const fn is_long(len: u32, lanes: u16) -> bool {
    lanes > 0 && len > CHUNK_BYTES_MIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chosen(threads: Option<u32>, sockets: Option<u32>, vendor: &str, cpus: usize) -> (u16, u16) {
        let layout = Layout::choose(threads, sockets, Some(vendor), cpus);
        (layout.lanes, layout.threads)
    }

    #[test]
    fn sockets_are_as_many_as_nccl_would_have() {
        assert_eq!(Layout::choose(None, None, None, 64), Layout::default());
        assert_eq!(chosen(None, None, "0x15b3", 64), (0, 0));
        assert_eq!(chosen(None, None, AWS, 64), (16, 2));
        assert_eq!(chosen(None, None, GCP, 64), (4, 4));
        assert_eq!(chosen(Some(4), Some(4), "", 64), (16, 4));
        assert_eq!(chosen(Some(3), None, AWS, 64), (24, 3));
        assert_eq!(chosen(None, Some(2), GCP, 64), (8, 4));
        assert_eq!(chosen(Some(0), Some(8), "", 64), (0, 0));
        assert_eq!(chosen(Some(16), Some(8), "", 64), (64, 16));
        assert_eq!(chosen(Some(7), Some(64), "", 64), (63, 7));
        assert_eq!(chosen(Some(1), Some(65), "", 64), (64, 1));
        assert_eq!(chosen(Some(17), Some(1), "", 64), (16, 16));
        assert_eq!(chosen(Some(u32::MAX), Some(u32::MAX), "", 64), (64, 16));
    }

    #[test]
    fn threads_are_no_more_than_there_are_cpus_for() {
        for (cpus, threads) in [(0, 0), (1, 0), (2, 0), (3, 1), (5, 3), (6, 4), (64, 4)] {
            assert_eq!(chosen(Some(4), Some(4), "", cpus), (16, threads));
        }
    }

    proptest! {
        #[test]
        fn chunks_cover_a_long_message_and_each_has_a_lane_of_its_own(
            len in 0u32..=i32::MAX as u32, small: bool, lanes in 0u16..=64, first: u16,
        ) {
            let len = if small { len >> 12 } else { len };
            let first = first % lanes.max(1);
            let chunks = Chunks::new(len, lanes, first);
            let count = chunks.left();
            prop_assert_eq!(count == 0, lanes == 0 || len <= CHUNK_BYTES_MIN);
            prop_assert!(count <= u32::from(lanes));
            let (mut at, mut lane) = (0, first);
            for chunk in chunks {
                prop_assert_eq!((chunk.lane, chunk.offset), (lane, at));
                at += chunk.len;
                prop_assert!(chunk.len >= CHUNK_BYTES_MIN || at == len);
                lane = (lane + 1) % lanes;
            }
            prop_assert_eq!(chunks.count(), count as usize);
            prop_assert_eq!(chunks.lane_after(), lane);
            prop_assert!(count == 0 || at == len);
        }
    }
}
