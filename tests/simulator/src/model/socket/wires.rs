//! The bytes in flight between the two ends.

use std::collections::VecDeque;

use invar_core::socket::Sender;

use crate::pattern::pattern_byte;

/// A part of a message that a lane carries.
struct Chunk {
    seq: usize,
    index: usize,
    offset: usize,
    len: usize,
}

/// The sending side of a lane.
#[derive(Default)]
struct Lane {
    /// The chunks that are not done, and the position of the first in the bytes of the lane.
    chunks: VecDeque<Chunk>,
    begin: u64,
    /// Position of the next byte to write.
    position: u64,
}

/// The sockets of a connection, with unlimited room.
pub(super) struct Wires {
    pub(super) control: VecDeque<u8>,
    pub(super) main: VecDeque<u8>,
    pub(super) lanes: Vec<VecDeque<u8>>,
    senders: Vec<Lane>,
    resumes: bool,
}

impl Wires {
    pub(super) fn new(lanes: u16, resumes: bool) -> Self {
        Wires {
            control: VecDeque::new(),
            main: VecDeque::new(),
            lanes: (0..lanes).map(|_| VecDeque::new()).collect(),
            senders: (0..lanes).map(|_| Lane::default()).collect(),
            resumes,
        }
    }

    pub(super) fn queue(
        &mut self,
        seq: usize,
        index: usize,
        chunk: invar_core::socket::SocketChunk,
    ) {
        let (offset, len) = (chunk.offset as usize, chunk.len as usize);
        self.senders[usize::from(chunk.lane)].chunks.push_back(Chunk { seq, index, offset, len });
    }

    /// Writes at most `bytes` bytes to a lane.
    pub(super) fn write_lane(&mut self, lane: u8, mut bytes: usize, sender: &mut Sender) {
        let Some(lane) = usize::from(lane).checked_rem(self.lanes.len()) else { return };
        let Lane { chunks, begin, position } = &mut self.senders[lane];
        let mut first = *begin;
        for Chunk { seq, offset, len, .. } in &*chunks {
            // A chunk in front has more bytes left than may be written.
            let Some(from) = position.checked_sub(first) else { break };
            let from = from.min(*len as u64) as usize;
            let to = (from + bytes).min(*len);
            self.lanes[lane].extend((offset + from..offset + to).map(|at| pattern_byte(*seq, at)));
            bytes -= to - from;
            *position += (to - from) as u64;
            first += *len as u64;
        }
        let done = if self.resumes { sender.lane_acks()[lane] } else { *position };
        self.end_chunks(lane, done, sender);
    }

    /// Notes that the receiver has read `done` bytes of a lane.
    fn end_chunks(&mut self, lane: usize, done: u64, sender: &mut Sender) {
        let Lane { chunks, begin, position } = &mut self.senders[lane];
        assert!(done <= *position, "read before it was written");
        while let Some(chunk) = chunks.pop_front_if(|chunk| *begin + chunk.len as u64 <= done) {
            *begin += chunk.len as u64;
            sender.chunk_done(chunk.index);
        }
    }

    /// Loses the bytes on a lane, of which the receiver has read `read` bytes.
    pub(super) fn lose_lane(&mut self, lane: usize, read: u64, sender: &mut Sender) {
        self.lanes[lane].clear();
        self.end_chunks(lane, read, sender);
        assert!(self.senders[lane].begin <= read, "a chunk that is over is lost");
        self.senders[lane].position = read;
    }

    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
    }
}
