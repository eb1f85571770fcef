//! The bytes in flight between the two ends.

use std::collections::VecDeque;

use invar_core::socket::Sender;

use crate::pattern::pattern_byte;

/// A part of a message that a lane has yet to take in.
struct Chunk {
    seq: usize,
    index: usize,
    offset: usize,
    left: usize,
}

/// The sockets of a connection, with unlimited room.
pub(super) struct Wires {
    pub(super) control: VecDeque<u8>,
    pub(super) main: VecDeque<u8>,
    pub(super) lanes: Vec<VecDeque<u8>>,
    /// The parts of messages that are not yet written to the lanes.
    chunks: Vec<VecDeque<Chunk>>,
}

impl Wires {
    pub(super) fn new(lanes: u16) -> Self {
        Wires {
            control: VecDeque::new(),
            main: VecDeque::new(),
            lanes: (0..lanes).map(|_| VecDeque::new()).collect(),
            chunks: (0..lanes).map(|_| VecDeque::new()).collect(),
        }
    }

    pub(super) fn queue(
        &mut self,
        seq: usize,
        index: usize,
        chunk: invar_core::socket::SocketChunk,
    ) {
        let (offset, left) = (chunk.offset as usize, chunk.len as usize);
        self.chunks[usize::from(chunk.lane)].push_back(Chunk { seq, index, offset, left });
    }

    /// Writes at most `bytes` bytes to a lane.
    pub(super) fn write_lane(&mut self, lane: u8, mut bytes: usize, sender: &mut Sender) {
        let Some(lane) = usize::from(lane).checked_rem(self.lanes.len()) else { return };
        while let Some(chunk) = self.chunks[lane].front_mut().filter(|_| bytes > 0) {
            let now = chunk.left.min(bytes);
            let (seq, from) = (chunk.seq, chunk.offset);
            self.lanes[lane].extend((from..from + now).map(|at| pattern_byte(seq, at)));
            (chunk.offset, chunk.left, bytes) = (from + now, chunk.left - now, bytes - now);
            if chunk.left == 0 {
                sender.chunk_done(chunk.index);
                self.chunks[lane].pop_front();
            }
        }
    }

    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
    }
}
