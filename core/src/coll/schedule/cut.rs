//! Cuts the elements of a task into windows, and the windows into chunks.

use super::super::{Algorithm, Operation, Task};

/// Chunks begin at multiples of this many bytes, a cache line, unless slots are smaller.
const ALIGN_BYTES: usize = 64;

/// A channel's share of the elements. If the ranks share the work on one buffer, a window has one chunk
/// for each rank; otherwise a window is one chunk. A chunk fits into a slot. All chunks but the last
/// have the same size.
///
/// Transfers are cut differently, because their two ends may be given different counts. Channels take
/// chunks in turn. Each chunk is as long as a slot, but the last chunk is shorter and may be empty. So
/// for any two counts, both ends have equal chunks until a chunk is not as long as the other end
/// expects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    start: usize,
    end: usize,
    chunk: usize,
    windows: usize,
    /// Elements from the start of one window to the start of the next.
    skip: usize,
    lanes: usize,
    /// Elements from one rank's block to the next; 0 if there are no blocks.
    stride: usize,
}

/// The position and length of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScheduleChunk {
    /// First element in the buffer that has all ranks' blocks.
    pub(super) of_all: usize,
    /// First element in the buffer that has one rank's block.
    pub(super) of_one: usize,
    /// Number of elements; 0 if the window ends before the chunk.
    pub(super) count: usize,
}

impl Cut {
    pub(super) fn new(task: &Task, nranks: u32) -> Self {
        let (lanes, stride) = match (task.operation, task.algorithm) {
            (Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll, _) => {
                (1, task.count)
            }
            (Operation::AllReduce, Algorithm::Ring | Algorithm::TwoShot) => (nranks as usize, 0),
            _ => (1, 0),
        };
        let slot = task.slot_bytes / task.data_type.bytes();
        let line = ALIGN_BYTES / task.data_type.bytes();
        let align = if slot < line { 1 } else { line };
        let slot = slot - slot % align;
        if task.operation.is_transfer() {
            let (channel, nchannels) = (task.channel as usize, task.nchannels as usize);
            return Cut {
                start: channel.saturating_mul(slot),
                end: task.count,
                chunk: slot,
                windows: (task.count / slot + nchannels - channel) / nchannels,
                skip: nchannels.saturating_mul(slot),
                lanes,
                stride,
            };
        }
        let share = task.count.div_ceil(task.nchannels as usize).next_multiple_of(align);
        let start = share.saturating_mul(task.channel as usize).min(task.count);
        let end = start.saturating_add(share).min(task.count);
        // The share is cut into the fewest possible windows, all of about the same size.
        let chunks = (end - start).div_ceil(lanes.saturating_mul(slot)).max(1) * lanes;
        let chunk = (end - start).div_ceil(chunks).next_multiple_of(align);
        let skip = lanes * chunk;
        let windows = if start == end { 0 } else { (end - start).div_ceil(skip) };
        Cut { start, end, chunk, windows, skip, lanes, stride }
    }

    pub(super) fn windows(&self) -> usize {
        self.windows
    }

    /// Returns the chunk of a lane, which is a rank's block, or a rank's part of the window.
    pub(super) fn chunk(&self, window: usize, lane: u32) -> ScheduleChunk {
        let lane = lane as usize;
        let before = if self.lanes > 1 { lane * self.chunk } else { 0 };
        let first = (self.start + window * self.skip + before).min(self.end);
        ScheduleChunk {
            of_all: first + lane * self.stride,
            of_one: first,
            count: self.chunk.min(self.end - first),
        }
    }
}
