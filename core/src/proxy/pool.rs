//! The pool of operations that the ranks of a host share with a proxy (`ncclProxyOpsPool`).
//!
//! Each rank has its own cells. The rank's free list holds the free cells: the proxy puts cells in, and
//! the rank takes all of them out at once. A rank links new operations into a private chain and posts
//! the chain. The proxy takes all posted chains at once and reverses them. The proxy gives the cells
//! back after it has copied their contents.
//!
//! No function of the pool waits. If a free list is empty, or no operation is posted, the function says
//! so and the host waits on the [`Head`] of that list.

mod poster;
mod taker;
#[cfg(test)]
mod tests;

pub use poster::{Appended, PostError, Poster};
pub use taker::{TakeError, Taken, Taker};

use super::link::OpLink;
use super::{Cell, Head};

/// Number of cells of a rank (`MAX_OPS_PER_PEER`): two rounds of 16 operations on each of 32 channels.
/// The rank can prepare one round while the other is posted.
pub const OPS_PER_RANK: usize = 2 * 32 * 16;
/// Most ranks of a host (`NCCL_MAX_LOCAL_RANKS`).
pub const LOCAL_RANKS_MAX: usize = 64;

/// The shared memory of the operations, as one process sees it.
#[derive(Clone, Copy, Debug)]
pub struct OpPool<'a> {
    posted: &'a Head,
    free: &'a [Head],
    cells: &'a [Cell],
}

impl<'a> OpPool<'a> {
    /// Creates a pool for `free.len()` ranks, from 1 to [`LOCAL_RANKS_MAX`], with an equal number of
    /// cells for each rank. Returns `None` if the lengths do not allow this.
    pub fn new(posted: &'a Head, free: &'a [Head], cells: &'a [Cell]) -> Option<Self> {
        let fits = (1..=LOCAL_RANKS_MAX).contains(&free.len())
            && !cells.is_empty()
            && cells.len().is_multiple_of(free.len())
            && cells.len() < 1 << 31;
        fits.then_some(OpPool { posted, free, cells })
    }

    /// Makes all cells free. The proxy calls this once, in memory that was zero, before any rank sees
    /// the memory.
    pub fn fill(&self) {
        (0..self.nranks()).for_each(|rank| self.fill_of(rank));
    }

    /// Makes all cells of a rank free, whichever list held them before.
    fn fill_of(&self, rank: u32) {
        let Some(head) = self.free(rank) else { return };
        let (first, last) = (rank * self.per_rank(), (rank + 1) * self.per_rank() - 1);
        head.take_all();
        for index in first..last {
            self.cells[index as usize].set_next(OpLink::to(index + 1));
        }
        // No process closes a free list, so the push succeeds.
        let _ = head.push(first, &self.cells[last as usize]);
    }

    /// Returns the list of posted operations. The thread that moves operations waits on this list.
    pub fn posted(&self) -> &'a Head {
        self.posted
    }

    /// Returns the list of a rank's free cells. The rank waits on this list.
    pub fn free(&self, rank: u32) -> Option<&'a Head> {
        self.free.get(rank as usize)
    }

    /// Returns the number of ranks.
    pub fn nranks(&self) -> u32 {
        self.free.len() as u32
    }

    /// Returns the number of cells of each rank.
    pub fn per_rank(&self) -> u32 {
        (self.cells.len() / self.free.len()) as u32
    }

    /// Returns the cell at `index`, or `None` if another process wrote an index that is too large.
    fn cell(&self, index: u32) -> Option<&'a Cell> {
        self.cells.get(index as usize)
    }

    fn rank_of(&self, index: u32) -> u32 {
        index / self.per_rank()
    }
}
