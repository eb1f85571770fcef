//! The operations that the ranks of a host share with a proxy (`ncclProxyOpsPool`).
//!
//! Each rank has cells of its own. Free ones lie in the rank's free list, which the proxy puts
//! into and the rank takes all of at once. A rank links new operations into a chain of its own and
//! posts the chain; the proxy takes all chains at once, turns them around, and gives the cells
//! back once it has copied what is in them.
//!
//! Nothing here waits. An empty free list, or no posted operation, is an ordinary answer, and the
//! host waits on the [`Head`] in question.

mod poster;
mod taker;
#[cfg(test)]
mod tests;

pub use poster::{Appended, PostError, Poster};
pub use taker::{TakeError, Taken, Taker};

use super::list::Link;
use super::{Cell, Head};

/// Cells of a rank (`MAX_OPS_PER_PEER`): two rounds of operations on all 32 channels, 16 each, so
/// that one can be posted while the other is put together.
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
    /// A pool for `free.len()` ranks, from 1 to [`LOCAL_RANKS_MAX`], with the same number of cells
    /// for each; `None` where there are not as many.
    pub fn new(posted: &'a Head, free: &'a [Head], cells: &'a [Cell]) -> Option<Self> {
        let fits = (1..=LOCAL_RANKS_MAX).contains(&free.len())
            && !cells.is_empty()
            && cells.len().is_multiple_of(free.len())
            && cells.len() < 1 << 31;
        fits.then_some(OpPool { posted, free, cells })
    }

    /// Makes all cells free: once, by the proxy, in memory that was zero, before any rank sees it.
    pub fn fill(&self) {
        (0..self.nranks()).for_each(|rank| self.fill_of(rank));
    }

    /// Makes all cells of a rank free, wherever they were.
    fn fill_of(&self, rank: u32) {
        let Some(head) = self.free(rank) else { return };
        let (first, last) = (rank * self.per_rank(), (rank + 1) * self.per_rank() - 1);
        head.take_all();
        for index in first..last {
            self.cells[index as usize].set_next(Link::to(index + 1));
        }
        // A free list is never closed.
        let _ = head.push(first, &self.cells[last as usize]);
    }

    /// The list of what is posted: who moves operations waits on it.
    pub fn posted(&self) -> &'a Head {
        self.posted
    }

    /// The list of a rank's free cells: the rank waits on it.
    pub fn free(&self, rank: u32) -> Option<&'a Head> {
        self.free.get(rank as usize)
    }

    /// Number of ranks.
    pub fn nranks(&self) -> u32 {
        self.free.len() as u32
    }

    /// Number of cells of each rank.
    pub fn per_rank(&self) -> u32 {
        (self.cells.len() / self.free.len()) as u32
    }

    /// The cell of an index that another process may have written.
    fn cell(&self, index: u32) -> Option<&'a Cell> {
        self.cells.get(index as usize)
    }

    fn rank_of(&self, index: u32) -> u32 {
        index / self.per_rank()
    }
}
