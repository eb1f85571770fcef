//! The work of all ranks: an operation, each rank's memory for it, and the expected result.

use std::sync::Arc;

use invar::communicator::Plan;
use invar_core::coll::{Algorithm, DataType, Operation, Order, RedOp, Task};

use super::MachineState;
use crate::model::coll::{self, Layout};
use crate::random::Random;

/// The channels and the size of a slot.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    /// The order of the ranks, for each channel.
    pub(super) orders: Vec<Order<Arc<[u32]>>>,
    pub(super) slot_bytes: usize,
}

/// A collective, or a shift, in which each rank sends to the rank that is this number behind it.
#[derive(Clone, Copy, Debug)]
enum What {
    Collective(Operation, Algorithm),
    Shift(u32),
}

/// The work of all ranks.
#[derive(Debug)]
pub(super) struct Work {
    what: What,
    redop: RedOp,
    count: usize,
    data_type: DataType,
    in_place: bool,
    inputs: Vec<Vec<i64>>,
}

/// One rank's memory for the work.
pub(super) struct Memory {
    /// The bytes of the layout, between two guards of [`GUARD_BYTES`].
    bytes: Vec<u8>,
    layout: Layout,
}

/// The content of bytes that no operation has written.
const UNTOUCHED: u8 = 0x55;
/// The number of bytes before and behind a rank's memory that no operation may write.
const GUARD_BYTES: usize = 64;

impl Work {
    pub(super) fn new(random: &mut Random, nranks: u32, slot_bytes: usize) -> Self {
        let collectives = coll::all(nranks);
        let what = match random.below(8) {
            0 if nranks > 1 => What::Shift(random.below(u64::from(nranks) - 1) as u32 + 1),
            _ => {
                let (operation, algorithm) = random.pick(&collectives);
                What::Collective(operation, algorithm)
            }
        };
        let (redop, data_type) = (random.pick(&RedOp::ALL), random.pick(&DataType::ALL));
        // Choose a length between zero and more slots than a link has.
        let elements = slot_bytes / data_type.bytes();
        let blocks = match what {
            What::Collective(operation, _) if of_blocks(operation) => u64::from(nranks),
            _ => 1,
        };
        let slots = random.below(20) / blocks;
        let count = slots as usize * elements + random.below(elements as u64) as usize;
        let mut work = Work {
            what,
            redop,
            count: if random.chance(50_000) { 0 } else { count },
            data_type,
            in_place: random.chance(400_000) && what.can_be_in_place(),
            inputs: Vec::new(),
        };
        let seed = random.next();
        let input = |rank| {
            let len = work.layout(rank, nranks).input_len;
            coll::input(seed, rank, data_type, redop, len)
        };
        work.inputs = (0..nranks).map(input).collect();
        work
    }

    /// The state of a rank that is at this work.
    pub(super) fn machine(&self) -> MachineState {
        match self.what {
            What::Collective(Operation::AllReduce, _) => MachineState::RankAllReduce,
            What::Collective(Operation::AllGather, _) => MachineState::RankAllGather,
            What::Collective(Operation::ReduceScatter, _) => MachineState::RankReduceScatter,
            What::Collective(Operation::Broadcast { .. }, _) => MachineState::RankBroadcast,
            What::Collective(Operation::Reduce { .. }, _) => MachineState::RankReduce,
            What::Collective(Operation::AllToAll, _) => MachineState::RankAllToAll,
            What::Collective(Operation::Send { .. } | Operation::Recv { .. }, _)
            | What::Shift(_) => MachineState::RankShift,
        }
    }

    /// The tasks of a rank, for one plan.
    pub(super) fn tasks(
        &self,
        channels: &Channels,
        rank: u32,
    ) -> impl Iterator<Item = Task> + use<'_> {
        let nranks = self.inputs.len() as u32;
        let (operations, algorithm) = match self.what {
            What::Collective(operation, algorithm) => ([Some(operation), None], algorithm),
            What::Shift(by) => {
                let send = Operation::Send { peer: (rank + by) % nranks };
                let recv = Operation::Recv { peer: (rank + nranks - by) % nranks };
                ([Some(send), Some(recv)], Algorithm::Ring)
            }
        };
        let (nchannels, slot_bytes) = (channels.orders.len() as u32, channels.slot_bytes);
        let Work { count, data_type, .. } = *self;
        let each = (0..nchannels)
            .flat_map(move |channel| operations.map(|operation| (channel, operation)));
        each.filter_map(move |(channel, operation)| {
            let operation = operation?;
            let of_rank = (rank, channel, nchannels, slot_bytes);
            let (rank, channel, nchannels, slot_bytes) = of_rank;
            Some(Task {
                operation,
                algorithm,
                count,
                data_type,
                rank,
                channel,
                nchannels,
                slot_bytes,
            })
        })
    }

    /// A rank's plan and its memory. The plan must be dropped first.
    pub(super) fn begin(&self, channels: &Channels, rank: u32) -> (Plan, Memory) {
        let layout = self.layout(rank, self.inputs.len() as u32);
        let element_bytes = self.data_type.bytes();
        let mut bytes = vec![UNTOUCHED; layout.len * element_bytes + 2 * GUARD_BYTES];
        let input = self.encoded(rank);
        let start = &mut bytes[GUARD_BYTES..];
        start[layout.input * element_bytes..][..input.len()].copy_from_slice(&input);
        let start = start.as_mut_ptr();
        let mut plan = Plan::default();
        for task in self.tasks(channels, rank) {
            let redop = reduces(task.operation).then_some(self.redop);
            let order = channels.orders[task.channel as usize].clone();
            // SAFETY: input and output are within `bytes`, as the layout says. Nobody touches the bytes
            // while the plan exists.
            let added = unsafe {
                let input = start.add(layout.input * element_bytes);
                let output = start.add(layout.output * element_bytes);
                plan.add(order, &task, redop, input, output)
            };
            added.unwrap_or_else(|error| panic!("{task:?}: {error}"));
        }
        (plan, Memory { bytes, layout })
    }

    /// Checks that a rank has the result that the definition of the operation demands.
    pub(super) fn check(&self, rank: u32, memory: &Memory) {
        let Work { redop, count, data_type, in_place, .. } = *self;
        let Memory { bytes, layout } = memory;
        let nranks = self.inputs.len() as u32;
        let operation = match self.what {
            What::Collective(operation, _) => operation,
            What::Shift(by) => Operation::Recv { peer: (rank + nranks - by) % nranks },
        };
        let what = || {
            let what = self.what;
            format!("{what:?} {redop:?} of {count} {data_type} at rank {rank} of {nranks}")
        };
        let (before, bytes) = bytes.split_at(GUARD_BYTES);
        let (bytes, behind) = bytes.split_at(bytes.len() - GUARD_BYTES);
        let is_untouched = before.iter().chain(behind).all(|byte| *byte == UNTOUCHED);
        assert!(is_untouched, "{}: a byte beside the memory has changed", what());
        let elements: Vec<&[u8]> = bytes.chunks_exact(data_type.bytes()).collect();
        let found = &elements[layout.output..][..layout.output_len];
        let wanted = coll::output(operation, redop, count, rank, &self.inputs);
        for (at, (found, want)) in found.iter().zip(wanted).enumerate() {
            let is_right = want.is_some_and(|want| want.is(data_type, found));
            assert!(is_right, "{}: element {at} is {found:?}, not {want:?}", what());
        }
        if !in_place || layout.output_len == 0 {
            let input = &bytes[layout.input * data_type.bytes()..];
            assert!(input.starts_with(&self.encoded(rank)), "{}: the input has changed", what());
        }
    }

    fn encoded(&self, rank: u32) -> Vec<u8> {
        let input = self.inputs[rank as usize].iter();
        input.flat_map(|value| coll::encode(self.data_type, *value)).collect()
    }

    fn layout(&self, rank: u32, nranks: u32) -> Layout {
        let operation = match self.what {
            What::Collective(operation, _) => operation,
            // A shift has as much input as output at every rank.
            What::Shift(_) => Operation::AllReduce,
        };
        Layout::new(operation, self.count, (rank, nranks), self.in_place)
    }
}

impl What {
    fn can_be_in_place(self) -> bool {
        matches!(self, What::Collective(operation, _) if operation != Operation::AllToAll)
    }
}

/// Whether the operation has a block for each rank.
fn of_blocks(operation: Operation) -> bool {
    matches!(operation, Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll)
}

fn reduces(operation: Operation) -> bool {
    use Operation::{AllReduce, Reduce, ReduceScatter};
    matches!(operation, AllReduce | Reduce { .. } | ReduceScatter)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank's work and its memory.
    fn work() -> (Work, Memory) {
        let order = Order::new(Arc::from([0])).expect("one rank");
        let channels = Channels { orders: vec![order], slot_bytes: 64 };
        let work = Work::new(&mut Random::new(1), 1, channels.slot_bytes);
        let (_, memory) = work.begin(&channels, 0);
        (work, memory)
    }

    #[test]
    #[should_panic(expected = "a byte beside the memory has changed")]
    fn a_byte_that_is_written_before_the_memory_is_found() {
        let (work, mut memory) = work();
        memory.bytes[GUARD_BYTES - 1] ^= 1;
        work.check(0, &memory);
    }

    #[test]
    #[should_panic(expected = "a byte beside the memory has changed")]
    fn a_byte_that_is_written_behind_the_memory_is_found() {
        let (work, mut memory) = work();
        let end = memory.bytes.len() - GUARD_BYTES;
        memory.bytes[end] ^= 1;
        work.check(0, &memory);
    }
}
