//! The buffer of a send.

/// Memory to send from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendBuf {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes, at most 2³¹ − 1. A message may have length 0.
    pub len: u32,
    /// Local key of the region that contains the memory.
    pub lkey: u32,
}
