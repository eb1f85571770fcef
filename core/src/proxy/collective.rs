//! Cuts a collective into loops, chunks and steps.

use core::num::NonZeroU32;

use super::Pattern;
use crate::math::{Protocol, STEPS};

/// A collective operation on the data of all ranks (`ncclFunc_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// All ranks receive the data of one rank.
    Broadcast,
    /// One rank receives the reduced data of all ranks.
    Reduce,
    /// All ranks receive the data of all ranks.
    AllGather,
    /// Each rank receives its share of the reduced data.
    ReduceScatter,
    /// All ranks receive the reduced data of all ranks.
    AllReduce,
}

/// The topology that a collective of NCCL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyAlgorithm {
    /// The data goes over two trees.
    Tree,
    /// The data goes over a ring.
    Ring,
    /// A switch reduces the data. Each host's heads reach the switch.
    CollnetDirect,
    /// A switch reduces the data. A chain within each host reaches the switch.
    CollnetChain,
}

impl Collective {
    /// Returns the pattern by which the data travels (`enqueue.cc getPatternInfo`). Returns `None` if
    /// NCCL does not run this collective by this algorithm.
    pub const fn pattern(self, algorithm: ProxyAlgorithm) -> Option<Pattern> {
        use {Collective as C, ProxyAlgorithm as A};
        Some(match (self, algorithm) {
            (C::Broadcast, A::Tree) => Pattern::TreeDown,
            (C::Broadcast, A::Ring) => Pattern::PipelineFrom,
            (C::Reduce, A::Tree) => Pattern::TreeUp,
            (C::Reduce, A::Ring) => Pattern::PipelineTo,
            (C::AllGather | C::ReduceScatter, A::Ring) => Pattern::Ring,
            (C::AllReduce, A::Tree) => Pattern::TreeUpDown,
            (C::AllReduce, A::Ring) => Pattern::RingTwice,
            (C::AllReduce, A::CollnetDirect) => Pattern::CollnetDirect,
            (C::AllReduce, A::CollnetChain) => Pattern::CollnetChain,
            _ => return None,
        })
    }

    /// Steps of a slice and steps of a chunk, for the simple protocol on a ring (`collectives.h`).
    const fn ring_steps(self) -> (u32, u32) {
        match self {
            Collective::Broadcast | Collective::Reduce => (1, 1),
            Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce => {
                (STEPS / 4, STEPS / 2)
            }
        }
    }
}

/// A collective, as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollTransfer {
    /// The collective operation.
    pub collective: Collective,
    /// The topology that the collective uses.
    pub algorithm: ProxyAlgorithm,
    /// The protocol that the data is in. A switch takes only [`Protocol::Simple`].
    pub protocol: Protocol,
    /// Bytes of the whole data; for an all-gather and a reduce-scatter, the bytes of all ranks
    /// together.
    pub bytes: u64,
    /// Bytes of a step: the protocol's buffer / [`STEPS`].
    pub step_bytes: NonZeroU32,
    /// Number of channels that share the work.
    pub nchannels: NonZeroU32,
    /// Number of ranks.
    pub nranks: NonZeroU32,
    /// Number of hosts that the ranks are on.
    pub nnodes: NonZeroU32,
    /// Depth of the tree, or of the path to the switch.
    pub depth: u32,
    /// Number of this host's ranks that reach the switch directly.
    pub nheads: NonZeroU32,
}

/// The steps that move a collective (`enqueue.cc computeColl`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollSteps {
    /// The pattern by which the data travels.
    pub pattern: Pattern,
    /// Number of steps in a slice.
    pub slice_steps: u32,
    /// Number of steps in a chunk, a multiple of `slice_steps`.
    pub chunk_steps: u32,
    /// Bytes of a chunk, including the protocol's flags.
    pub chunk_bytes: u32,
    /// Bytes of the data that a chunk carries.
    pub payload_bytes: u32,
    /// Most bytes that a slice moves (`nbytes`).
    pub slice_bytes: u64,
    /// Total number of steps, a multiple of `chunk_steps`; 0 if there is nothing to move.
    pub nsteps: u64,
}

impl CollTransfer {
    /// Computes steps and chunks. Returns `None` if NCCL does not run this collective by this
    /// algorithm, or if the number of steps exceeds 2^64.
    pub fn steps(&self) -> Option<CollSteps> {
        let pattern = self.collective.pattern(self.algorithm)?;
        let (slice_steps, chunk_steps) = match (self.protocol, self.algorithm) {
            (Protocol::Simple, ProxyAlgorithm::Ring) => self.collective.ring_steps(),
            _ => (1, 1),
        };
        let step_bytes = self.step_bytes.get();
        let chunk_bytes = self.chunk_bytes(pattern, step_bytes.checked_mul(chunk_steps)?);
        let payload_bytes = match self.protocol {
            Protocol::Simple => chunk_bytes,
            Protocol::Ll => chunk_bytes / 2,
            Protocol::Ll128 => chunk_bytes / 16 * 15,
        };
        let (steps_per_loop, chunks_per_loop) = self.loop_of(pattern);
        let loop_bytes = u128::from(self.nchannels.get())
            * u128::from(chunks_per_loop)
            * u128::from(payload_bytes.max(1));
        let nloops = u128::from(self.bytes).div_ceil(loop_bytes);
        let nsteps = nloops.checked_mul(u128::from(steps_per_loop * u64::from(chunk_steps)))?;
        Some(CollSteps {
            pattern,
            slice_steps,
            chunk_steps,
            chunk_bytes,
            payload_bytes,
            slice_bytes: u64::from(step_bytes) * u64::from(slice_steps),
            nsteps: u64::try_from(nsteps).ok()?,
        })
    }

    /// Steps and chunks of one loop (`enqueue.cc getLoopInfo`).
    fn loop_of(&self, pattern: Pattern) -> (u64, u32) {
        let nranks = self.nranks.get();
        match pattern {
            Pattern::Ring => (u64::from(nranks - 1), nranks),
            Pattern::RingTwice => (2 * u64::from(nranks - 1), nranks),
            Pattern::CollnetDirect => (1, self.nheads.get()),
            _ => (1, 1),
        }
    }

    /// Bytes of a chunk. If there is too little data to fill the pipeline of `depth` hops with chunks
    /// of `whole` bytes, the chunk is smaller.
    fn chunk_bytes(&self, pattern: Pattern, whole: u32) -> u32 {
        let depth = u64::from(self.depth);
        let nchannels = u64::from(self.nchannels.get());
        let halve = |chunk: u32, floor: u32, nheads: u64, chunks_wanted: u64| {
            let mut chunk = chunk;
            // Both counts have 32 bits, and a chunk above the floor is below 2^32, so the product fits.
            while chunk > floor
                && u128::from(self.bytes)
                    < u128::from(nchannels * nheads) * u128::from(chunk) * u128::from(chunks_wanted)
            {
                chunk /= 2;
            }
            chunk
        };
        match (self.algorithm, self.protocol) {
            (ProxyAlgorithm::Tree, Protocol::Simple) if pattern == Pattern::TreeUpDown => {
                let chunk = halve(whole, 128 << 10, 1, depth * 8);
                let chunk = halve(chunk, 64 << 10, 1, depth * 4);
                halve(chunk, 32 << 10, 1, depth)
            }
            (ProxyAlgorithm::CollnetDirect, _) => {
                let nheads = u64::from(self.nheads.get());
                let chunk = halve(whole, 128 << 10, nheads, depth * 64);
                let chunk = halve(chunk, 64 << 10, nheads, depth * 8);
                halve(chunk, 32 << 10, nheads, depth * 8)
            }
            (ProxyAlgorithm::CollnetChain, _) => {
                let chunk = halve(whole.min(256 << 10), 128 << 10, 1, depth * 64);
                let chunk = halve(chunk, 64 << 10, 1, depth * 8);
                halve(chunk, 32 << 10, 1, depth)
            }
            (ProxyAlgorithm::Tree, Protocol::Ll128) => {
                let chunk = halve(whole, 128 << 10, 1, self.ll128_chunks(64));
                halve(chunk, 32 << 10, 1, self.ll128_chunks(16))
            }
            _ => whole,
        }
    }

    /// Number of chunks that keep a tree of LL128 busy. With `ppn` ranks on each host there are 1 +
    /// log2(hosts) + ppn / 10 hops. Each hop needs `factor / ppn` chunks. The result is rounded up.
    fn ll128_chunks(&self, factor: u64) -> u64 {
        let (nranks, nnodes) = (u64::from(self.nranks.get()), u64::from(self.nnodes.get()));
        let hops = 1 + u64::from(self.nnodes.ilog2());
        // The quotient is factor × (hops + nranks / (10 × nnodes)) × nnodes / nranks, over one
        // denominator.
        (factor * (10 * hops * nnodes + nranks)).div_ceil(10 * nranks)
    }
}

#[cfg(test)]
mod tests;
