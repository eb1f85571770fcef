//! Chooses the algorithm, the number of channels and the chunk size of an operation.

use invar_core::coll::{Algorithm, ONE_SHOT_RANKS_MAX, Operation};
use invar_linux::shm::RingLayout;

/// The choice for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) algorithm: Algorithm,
    pub(super) nchannels: u32,
    /// Most bytes of a chunk.
    pub(super) slot_bytes: usize,
}

/// Facts that are equal on all ranks, because all ranks must make the same choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub(super) nranks: u32,
    /// Number of channels that exist.
    pub(super) nchannels: u32,
    pub(super) tuning: Tuning,
    /// Most bytes of a chunk that any rank may send to any other, as [`pair_chunk_bytes`] returns them.
    pub(super) pair_chunk_bytes: usize,
    /// Bytes of a chunk of a message between two ranks, at most `pair_chunk_bytes`.
    pub(super) p2p_chunk_bytes: usize,
}

/// Parameters that suit one kind of link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Bytes of a slot, and so the length of the longest chunk.
    pub(super) slot_bytes: usize,
    /// Least bytes of a channel's share; below this size another channel costs more than it gains.
    channel_bytes_min: usize,
    /// Up to this many bytes, each of two ranks sends its whole input to the other, which takes one
    /// wait. A tree moves as many bytes, and each rank waits twice. On a ring each rank also waits
    /// twice.
    pair_bytes: usize,
    /// Whether an all-reduce that is too large for one shot takes two hops, whatever its size.
    two_hops: bool,
}

impl Tuning {
    /// Links through shared memory: eight slots for each direction stay in a processor's second-level
    /// cache.
    pub(super) const SHARED_MEMORY: Tuning = Tuning {
        slot_bytes: 128 << 10,
        channel_bytes_min: usize::MAX,
        pair_bytes: 0,
        two_hops: true,
    };

    /// Links over networks of any kind.
    pub(super) const NETWORK: Tuning = Tuning {
        slot_bytes: 256 << 10,
        channel_bytes_min: 128 << 10,
        pair_bytes: 256 << 10,
        two_hops: false,
    };

    /// Links over TCP on one interface. The rank's single thread moves all channels, and it makes one
    /// or two system calls for each chunk.
    pub(super) const TCP: Tuning = Tuning {
        slot_bytes: 1 << 20,
        channel_bytes_min: 32 << 20,
        pair_bytes: 256 << 10,
        two_hops: false,
    };
}

/// Up to this many bytes each rank sends its whole input to every other rank. This takes one hop and
/// moves `nranks - 1` times the bytes.
const ONE_SHOT_BYTES: usize = 16 << 10;

/// Up to this many bytes a tree's hops cost less than a ring's, for sizes at which one shot is too
/// expensive.
const TREE_BYTES: usize = 256 << 10;

/// A rank needs as long to pass on a chunk as a link needs for the chunk and this many more bytes.
const PASS_ON_BYTES: usize = 128 << 10;

/// Least length of the chunks that ranks pass on.
const PASSED_ON_BYTES_MIN: usize = 16 << 10;

/// Most bytes of shared memory that all pairs of a host's ranks use together.
const PAIRS_BYTES_MAX: usize = 4 << 30;

/// Returns the most bytes of a chunk of an operation in which any rank may send to any other.
///
/// Each ordered pair of a host's ranks has a ring of slots on each channel, so the number of rings grows with the
/// square of the number of ranks. A slot costs only the memory that a chunk touches. Chunks of this length touch at
/// most [`PAIRS_BYTES_MAX`] if `host_ranks` share memory. A chunk may always have a page.
pub(super) fn pair_chunk_bytes(slot_bytes: usize, host_ranks: usize, nchannels: u32) -> usize {
    let pairs = host_ranks.saturating_mul(host_ranks.saturating_sub(1));
    let rings = pairs.saturating_mul(nchannels as usize);
    let ring_bytes = PAIRS_BYTES_MAX.checked_div(rings).unwrap_or(usize::MAX);
    RingLayout::within(ring_bytes).slot_bytes().min(slot_bytes)
}

impl Facts {
    /// Chooses for an operation on `bytes` bytes. If the operation has a block for each rank, this is
    /// the size of a block; otherwise it is the size of the whole.
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
            // A transfer may use all channels that its message is long enough for. Its two ends may be
            // given different counts, so the choice must not depend on `bytes`.
            let nchannels = self.nchannels;
            return Choice { algorithm, nchannels, slot_bytes: self.p2p_chunk_bytes };
        }
        let worth_it = bytes.div_ceil(self.tuning.channel_bytes_min);
        let nchannels = worth_it.clamp(1, self.nchannels as usize) as u32;
        let slot_bytes = match (algorithm, operation) {
            (Algorithm::Ring, Operation::Broadcast { .. } | Operation::Reduce { .. }) => {
                self.passed_on_bytes(bytes)
            }
            (_, Operation::AllToAll) => self.pair_chunk_bytes,
            _ => self.tuning.slot_bytes,
        };
        Choice { algorithm, nchannels, slot_bytes }
    }

    /// Returns the most bytes of a chunk for `bytes` bytes that go from rank to rank around the ring.
    ///
    /// Between the first rank and the last one, `passers` ranks pass on each chunk. The first chunk reaches the last
    /// rank after all of them, and the other chunks follow it. So `n` chunks of `c` bytes take the time of
    /// `(passers + n) * (c + PASS_ON_BYTES)` bytes, which is least at this length.
    fn passed_on_bytes(&self, bytes: usize) -> usize {
        let slot_bytes = self.tuning.slot_bytes;
        let passers = self.nranks.saturating_sub(2) as usize;
        let squared = bytes.saturating_mul(PASS_ON_BYTES).checked_div(passers);
        squared.map_or(slot_bytes, |squared| squared.isqrt().clamp(PASSED_ON_BYTES_MIN, slot_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts = Facts {
        nranks: 4,
        nchannels: 4,
        tuning: Tuning::NETWORK,
        pair_chunk_bytes: 1 << 16,
        p2p_chunk_bytes: 1 << 10,
    };

    /// Returns the bytes of memory that all pairs of ranks touch together with chunks of `chunk_bytes`.
    fn touched_bytes(chunk_bytes: usize, host_ranks: usize, nchannels: u32) -> usize {
        let ring_bytes = RingLayout::new(chunk_bytes).unwrap().ring_bytes();
        host_ranks * (host_ranks - 1) * nchannels as usize * ring_bytes
    }

    #[test]
    fn all_pairs_of_a_hosts_ranks_touch_a_bounded_part_of_the_shared_memory() {
        for host_ranks in 2..=256 {
            for (tuning, nchannels) in [(Tuning::SHARED_MEMORY, 1), (Tuning::NETWORK, 2)] {
                let slot_bytes = tuning.slot_bytes;
                let chunk_bytes = pair_chunk_bytes(slot_bytes, host_ranks, nchannels);
                let touched_bytes = touched_bytes(chunk_bytes, host_ranks, nchannels);
                // From 242 ranks on two channels a page in each slot is more.
                let is_least = chunk_bytes == 4096 && nchannels == 2 && host_ranks >= 242;
                assert!(
                    touched_bytes <= PAIRS_BYTES_MAX || is_least,
                    "{host_ranks}: {touched_bytes}"
                );
                assert!(chunk_bytes <= slot_bytes, "{host_ranks}");
            }
        }
    }

    #[test]
    fn few_ranks_of_a_host_fill_whole_slots_and_many_fill_parts() {
        let in_memory = |ranks| pair_chunk_bytes(Tuning::SHARED_MEMORY.slot_bytes, ranks, 1);
        assert_eq!(
            [0, 1, 2, 16, 64, 128, 256].map(in_memory).map(|bytes| bytes >> 10),
            [128, 128, 128, 128, 128, 28, 4]
        );
        let of_eight_channels = |ranks| pair_chunk_bytes(Tuning::NETWORK.slot_bytes, ranks, 8);
        assert_eq!([1, 16, 32].map(of_eight_channels).map(|bytes| bytes >> 10), [256, 256, 64]);
    }

    #[test]
    fn messages_and_all_to_all_have_chunks_of_their_own_sizes() {
        let bytes = |operation| FACTS.choose(operation, 1 << 20).slot_bytes;
        assert_eq!(bytes(Operation::Send { peer: 1 }), 1 << 10);
        assert_eq!(bytes(Operation::Recv { peer: 1 }), 1 << 10);
        assert_eq!(bytes(Operation::AllToAll), 1 << 16);
        assert_eq!(bytes(Operation::AllGather), 1 << 18);
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
    fn data_that_many_ranks_pass_on_goes_in_many_chunks_which_fit_into_slots() {
        let chunks = |operation, nranks, bytes: usize| {
            let facts = Facts { nranks, tuning: Tuning::TCP, ..FACTS };
            bytes.div_ceil(facts.choose(operation, bytes).slot_bytes)
        };
        let mib = 1 << 20;
        for operation in [Operation::Broadcast { root: 1 }, Operation::Reduce { root: 1 }] {
            let chunks = |nranks, bytes| chunks(operation, nranks, bytes);
            assert_eq!([2, 3, 8, 16, 64].map(|nranks| chunks(nranks, mib)), [1, 3, 7, 11, 23]);
            assert_eq!([mib / 2, 4 * mib, 64 * mib].map(|n| chunks(8, n)), [5, 14, 64]);
            assert_eq!(chunks(10_000, mib), 64, "chunks of the least length");
        }
        assert_eq!(chunks(Operation::AllReduce, 16, mib), 1);
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
