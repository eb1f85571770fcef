//! Lists in shared memory that need no lock: many processes put chains in, and one process takes all
//! chains out.
//!
//! An index links a cell to the next one, since each process maps the memory at its own address. One
//! compare-and-swap of the head puts a chain in, and one exchange takes all chains out. A process that
//! is killed at any point therefore leaves the list whole. No process takes out a single cell, so a
//! head that has changed and changed back does no harm (there is no ABA problem).

use super::Cell;
use super::link::{AtomicU32, OpLink, Ordering};

/// The head of the list is closed, so the list takes in no more cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxy has been told to stop")]
pub struct Closed;

/// This bit marks a closed head. No index is large enough to set it.
const CLOSED: u32 = 1 << 31;

/// The head of a list, on a cache line of its own.
///
/// The word of the head is zero exactly while the list is empty and open. A thread that waits for cells
/// waits by a futex for the word to change.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Head(AtomicU32);

impl Head {
    /// Returns the word that a futex waits on.
    pub fn word(&self) -> &AtomicU32 {
        &self.0
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) & !CLOSED == 0
    }

    /// Returns whether [`Head::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Closes the list, which then takes in no more cells. The cells in the list stay until a process
    /// takes them out. The caller must wake all threads that wait on the head.
    pub fn close(&self) {
        self.0.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Puts a chain, which ends at `last`, in front of all cells of the list. Returns whether the
    /// head's word was zero, so that the caller may have to wake a waiting thread.
    pub(super) fn push(&self, first: u32, last: &Cell) -> Result<bool, Closed> {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            if head & CLOSED != 0 {
                return Err(Closed);
            }
            last.set_next(OpLink::from_word(head));
            // Release: the process that takes the chain sees its cells as they are now. Later pushes
            // are read-modify-writes, so they continue the release sequence.
            match self.0.compare_exchange_weak(
                head,
                OpLink::to(first).word(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(head == 0),
                Err(now) => head = now,
            }
        }
    }

    /// Takes out all cells. The chain that was pushed last comes first.
    pub(super) fn take_all(&self) -> OpLink {
        OpLink::from_word(self.0.fetch_and(CLOSED, Ordering::Acquire) & !CLOSED)
    }
}
