//! Transport headers as Rust values (IBTA §9.2, §9.3). The module [`wire`] has their byte layouts.

mod aeth;
mod bth;
pub(super) mod wire;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use bth::Bth;

/// RDMA extended transport header: names the remote memory of a WRITE or a READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Address of the first byte, in the responder's address space.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub dma_len: u32,
}

/// Immediate data: four bytes that travel in memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImmDt(pub [u8; 4]);

/// Atomic extended transport header: names the remote word and the operands of an atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Address of the 8-byte word, in the responder's address space.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// New value for COMPARE_SWAP, or addend for FETCH_ADD.
    pub swap_or_add: u64,
    /// Value that COMPARE_SWAP compares the word with.
    pub compare: u64,
}

/// Atomic acknowledge extended transport header: the word's value before the operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtomicAckEth(pub u64);

/// Invalidate extended transport header: the rkey that the responder shall invalidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ieth(pub u32);

/// Datagram extended transport header: sender and queue key of an unreliable datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Queue key of the destination.
    pub qkey: u32,
    /// Reserved bits above the queue pair number, kept as received.
    pub resv8: u8,
    /// Number of the sending queue pair, 24 bits.
    pub src_qp: u32,
}

#[cfg(test)]
mod tests;
