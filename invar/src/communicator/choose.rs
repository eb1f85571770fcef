//! Which algorithm, on how many channels, in chunks of how many bytes.

use invar_core::coll::{Algorithm, ONE_SHOT_RANKS_MAX, Operation};

/// How an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) nchannels: u32,
    /// Most bytes of a chunk.
    pub(super) slot_bytes: usize,
}

/// What all ranks know alike: they must all choose the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) nranks: u32,
    /// Channels that there are.
    pub(super) nchannels: u32,
    pub(super) tuning: Tuning,
    /// Bytes of a chunk of a message from one rank to another, no more than of a slot.
    pub(super) p2p_chunk_bytes: usize,
}

/// What suits links of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Bytes of a slot, and so of the longest chunk.
    pub(super) slot_bytes: usize,
    /// Bytes of a channel's share below which another channel costs more than it brings.
    channel_bytes_min: usize,
    /// Up to so many bytes two ranks send each other all they have. By a tree they exchange as many
    /// and each waits for the other twice, and around a ring still once more than so.
    pair_bytes: usize,
    /// Whether an all-reduce goes in two hops beyond one shot, whatever its size.
    two_hops: bool,
}

impl Tuning {
    /// Shared memory: eight slots for each direction stay in a processor's second cache.
    pub(super) const SHARED_MEMORY: Tuning = Tuning {
        slot_bytes: 128 << 10,
        channel_bytes_min: usize::MAX,
        pair_bytes: 0,
        two_hops: true,
    };

    /// Networks, whatever they are.
    pub(super) const NETWORK: Tuning = Tuning {
        slot_bytes: 256 << 10,
        channel_bytes_min: 128 << 10,
        pair_bytes: 256 << 10,
        two_hops: false,
    };

    /// TCP over one interface. Each chunk is a system call or two of the rank's one thread, which
    /// moves all channels.
    pub(super) const TCP: Tuning = Tuning {
        slot_bytes: 1 << 20,
        channel_bytes_min: 32 << 20,
        pair_bytes: 256 << 10,
        two_hops: false,
    };
}

/// Up to so many bytes each rank sends its whole input to every other one, which costs one hop and
/// `nranks - 1` times the bytes.
const ONE_SHOT_BYTES: usize = 16 << 10;

/// Up to so many bytes the hops of a tree cost less than a ring's, where one shot does not do.
const TREE_BYTES: usize = 256 << 10;

impl Facts {
    /// For an operation on `bytes` bytes: of a rank's block where it has a block for each rank,
    /// else of the whole.
    pub(super) fn choose(&self, operation: Operation, bytes: usize) -> Choice {
        let few = self.nranks <= ONE_SHOT_RANKS_MAX;
        let algorithm = match operation {
            _ if few && bytes <= ONE_SHOT_BYTES => Algorithm::OneShot,
            Operation::AllReduce if self.nranks == 2 && bytes <= self.tuning.pair_bytes => {
                Algorithm::OneShot
            }
            Operation::AllReduce if few && self.tuning.two_hops => Algorithm::TwoShot,
            Operation::AllReduce | Operation::Broadcast { .. } | Operation::Reduce { .. }
                if bytes <= TREE_BYTES =>
            {
                Algorithm::Tree
            }
            _ => Algorithm::Ring,
        };
        if operation.is_transfer() {
            // Those that a message is long enough for: its ends need not know of the same bytes.
            let nchannels = self.nchannels;
            return Choice { algorithm, nchannels, slot_bytes: self.p2p_chunk_bytes };
        }
        let Tuning { slot_bytes, channel_bytes_min, .. } = self.tuning;
        let worth_it = bytes.div_ceil(channel_bytes_min);
        let nchannels = worth_it.clamp(1, self.nchannels as usize) as u32;
        Choice { algorithm, nchannels, slot_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts =
        Facts { nranks: 4, nchannels: 4, tuning: Tuning::NETWORK, p2p_chunk_bytes: 1 << 10 };

    #[test]
    fn messages_have_chunks_of_their_own_size() {
        let bytes = |operation| FACTS.choose(operation, 1 << 20).slot_bytes;
        assert_eq!(bytes(Operation::Send { peer: 1 }), 1 << 10);
        assert_eq!(bytes(Operation::Recv { peer: 1 }), 1 << 10);
        assert_eq!(bytes(Operation::AllToAll), 1 << 18);
    }

    #[test]
    fn little_data_of_few_ranks_goes_straight_and_much_goes_around() {
        let algorithm = |bytes| FACTS.choose(Operation::AllReduce, bytes).algorithm;
        assert_eq!(algorithm(8), Algorithm::OneShot);
        assert_eq!(algorithm(100 << 10), Algorithm::Tree);
        assert_eq!(algorithm(1 << 20), Algorithm::Ring);
        let many = Facts { nranks: 9, ..FACTS };
        assert_eq!(many.choose(Operation::AllReduce, 8).algorithm, Algorithm::Tree);
        assert_eq!(many.choose(Operation::AllGather, 8).algorithm, Algorithm::Ring);
    }

    #[test]
    fn channels_are_for_data_that_is_worth_it_and_for_networks() {
        let facts = Facts { nranks: 2, ..FACTS };
        let nchannels = |facts: Facts, bytes| facts.choose(Operation::AllReduce, bytes).nchannels;
        assert_eq!([0, 1 << 17, 1 << 18, 1 << 30].map(|n| nchannels(facts, n)), [1, 1, 2, 4]);
        assert_eq!(nchannels(Facts { tuning: Tuning::SHARED_MEMORY, ..facts }, 1 << 30), 1);
    }

    #[test]
    fn two_ranks_over_tcp_have_one_channel_and_long_chunks_as_long_as_calls_cost_more() {
        let choice = |tuning, bytes| {
            let facts = Facts { nranks: 2, nchannels: 2, tuning, ..FACTS };
            let Choice { algorithm, nchannels, slot_bytes } =
                facts.choose(Operation::AllReduce, bytes);
            (algorithm, nchannels, slot_bytes)
        };
        let mib = 1 << 20;
        assert_eq!(choice(Tuning::TCP, mib / 4), (Algorithm::OneShot, 1, mib));
        assert_eq!(choice(Tuning::TCP, mib / 4 + 1), (Algorithm::Ring, 1, mib));
        assert_eq!(choice(Tuning::TCP, 64 * mib), (Algorithm::Ring, 2, mib));
        assert_eq!(choice(Tuning::NETWORK, mib), (Algorithm::Ring, 2, mib / 4));
    }
}
