//! What the proxy of `invar-core` needs of Linux.

mod banks;

pub use banks::HeapBanks;
