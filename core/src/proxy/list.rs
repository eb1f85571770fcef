//! Lists in shared memory that need no lock: many put chains in, one takes all out.
//!
//! Cells are linked by index, since every process maps the memory where it likes. A chain is put
//! in by one compare-and-swap of the head and taken out by one exchange, so a process that is
//! killed anywhere leaves the list whole. Nothing is ever taken out singly, so a head that has
//! changed and changed back does no harm (there is no ABA problem).

#[cfg(not(all(loom, test)))]
pub(super) use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(all(loom, test))]
pub(super) use loom::sync::atomic::{AtomicU32, Ordering};

use super::Cell;

/// The index of a cell, or the end of a list. Zero is the end, so that zeroed memory is an empty
/// list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Link(u32);

impl Link {
    pub(super) const END: Link = Link(0);

    pub(super) const fn to(index: u32) -> Self {
        Link(index + 1)
    }

    pub(super) const fn index(self) -> Option<u32> {
        self.0.checked_sub(1)
    }

    pub(super) const fn word(self) -> u32 {
        self.0
    }

    pub(super) const fn from_word(word: u32) -> Self {
        Link(word)
    }
}

/// The head of a list is closed: nothing is taken in any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy has been told to stop")]
pub struct Closed;

/// Set in a head that is closed; no index is that large.
const CLOSED: u32 = 1 << 31;

/// The head of a list, on a cache line of its own.
///
/// Its word is zero just while the list is empty and open: who waits for more than that waits, by
/// a futex, for the word to change.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Head(AtomicU32);

impl Head {
    /// The word to wait on.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !CLOSED == 0
    }

    /// Whether [`Head::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Takes no more in. What is in it stays until it is taken out. Whoever waits must be woken.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Puts a chain in, which `last` is the end of, before all that is there; says whether nothing
    /// was there, so that somebody may have to be woken.
    pub(super) fn push(&self, first: u32, last: &Cell) -> Result<bool, Closed> {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            if head & CLOSED != 0 {
                return Err(Closed);
            }
            last.set_next(Link::from_word(head));
            // Release: whoever takes the chain sees its cells as they are now. Later pushes, being
            // read-modify-writes, carry that on.
            match self.0.compare_exchange_weak(
                head,
                Link::to(first).word(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(head == 0),
                Err(now) => head = now,
            }
        }
    }

    /// Takes everything out, the chain that came last first.
    pub(super) fn take_all(&self) -> Link {
        Link::from_word(self.0.fetch_and(CLOSED, Ordering::Acquire) & !CLOSED)
    }
}
