//! Transport headers (IBTA §9.2, §9.3) as values. Their bytes are in [`wire`].

mod aeth;
mod bth;
pub(super) mod wire;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use bth::Bth;

/// RDMA extended transport header: the remote memory of a WRITE or READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reth {
    /// First byte, in the responder's addresses.
    pub va: u64,
    /// The responder's key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub dma_len: u32,
}

/// Immediate data: four bytes that travel as they lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmDt(pub [u8; 4]);

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// The 8 bytes, in the responder's addresses.
    pub va: u64,
    /// The responder's key.
    pub rkey: u32,
    /// New value of COMPARE_SWAP, addend of FETCH_ADD.
    pub swap_or_add: u64,
    /// What COMPARE_SWAP compares with.
    pub compare: u64,
}

/// Atomic acknowledge extended transport header: the value before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicAckEth(pub u64);

/// Invalidate extended transport header: the key to invalidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ieth(pub u32);

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Key of the destination queue.
    pub qkey: u32,
    /// Reserved bits above the queue pair, kept.
    pub resv8: u8,
    /// Sending queue pair, 24 bits.
    pub src_qp: u32,
}

#[cfg(test)]
mod tests;
