//! Metrics: the numbers of connections, ranks and processes that operators watch.
//!
//! An end counts its bytes. It takes all other numbers at the looks of its keeper: a [`Sampler`] picks a
//! message now and then and measures it. So a message that is not picked pays nothing for its latency.

mod histogram;
mod sampler;

pub use histogram::{BUCKETS, Histogram};
pub use sampler::Sampler;

/// The numbers of an end since it was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndNumbers {
    /// Bytes of the messages that the program has found done.
    pub bytes: u64,
    /// Number of times that new queue pairs were made.
    pub recoveries: u64,
    /// Number of stalls that were reported.
    pub stalls: u64,
    /// Nanoseconds for which a sender waited for the peer to post a receive.
    pub receive_wait_ns: u64,
    /// For a sender: times of sampled messages, from the call that starts a message to the call that finds
    /// it done.
    pub latency: Histogram,
}

/// The numbers of a rank since it joined its communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankNumbers {
    /// Number of operations that are done.
    pub operations: u64,
    /// Bytes of these operations, as their counts say.
    pub bytes: u64,
    /// Nanoseconds for which the rank waited for other ranks.
    pub waited_ns: u64,
    /// Number of stalls that were reported.
    pub stalls: u64,
}

/// Counts of a process: memory that it registered with NICs, and GPU memory that passed through host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNumbers {
    /// Number of registrations that were made with NICs.
    pub registrations: u64,
    /// Number of registrations for which a NIC had registered the pages already.
    pub registration_hits: u64,
    /// Bytes of GPU memory that were copied through pinned host memory.
    pub staged_bytes: u64,
}
