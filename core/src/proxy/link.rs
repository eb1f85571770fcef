//! Links from cell to cell in shared memory, and the atomics that hold them.

#[cfg(not(all(loom, test)))]
pub(super) use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(all(loom, test))]
pub(super) use loom::sync::atomic::{AtomicU32, Ordering};

/// The index of a cell, or the end of a list. Zero means the end, so zeroed memory is an empty list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OpLink(u32);

impl OpLink {
    pub(super) const END: OpLink = OpLink(0);

    pub(super) const fn to(index: u32) -> Self {
        OpLink(index + 1)
    }

    pub(super) const fn index(self) -> Option<u32> {
        self.0.checked_sub(1)
    }

    pub(super) const fn word(self) -> u32 {
        self.0
    }

    pub(super) const fn from_word(word: u32) -> Self {
        OpLink(word)
    }
}
