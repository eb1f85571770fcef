//! The taker is the proxy's side of the pool.

use super::OpPool;
use crate::proxy::link::OpLink;
use crate::proxy::{Op, OpError};

/// Takes posted operations out of a pool (`ncclProxyGetPostedOps`). Each pool must have exactly one
/// taker.
#[derive(Debug, Default)]
pub struct Taker {
    /// The operations that the taker has taken and not handed on yet, the oldest first.
    next: OpLink,
    /// Number of operations in `next`. The taker counts them because another process may change the
    /// links.
    left: u32,
}

/// The result of [`Taker::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Number of operations that the taker handed on.
    pub ops: u32,
    /// Ranks (one bit each) that had no free cell and have free cells now. These ranks may wait on
    /// [`OpPool::free`].
    pub wake_ranks: u64,
}

/// The reason why the taker can't take operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError<E> {
    /// A cell holds an invalid operation.
    #[error("cell {index}, of local rank {rank}: {error}")]
    Op {
        /// The rank that owns the cell.
        rank: u32,
        /// The cell's index.
        index: u32,
        /// The reason why the operation is invalid.
        error: OpError,
    },
    /// Other code than this pool's has written into the pool's memory.
    #[error("the list of posted operations leads to cell {0}, and never ends or leaves the pool")]
    Corrupt(u32),
    /// The function that the taker hands operations to returned an error.
    #[error("an operation of local rank {rank}: {error}")]
    Append {
        /// The rank that posted the operation.
        rank: u32,
        /// The function's error.
        error: E,
    },
}

impl Taker {
    /// Returns whether the taker holds operations that it has not handed on yet.
    pub fn has_more(&self) -> bool {
        self.next != OpLink::END
    }

    /// Makes all cells of a rank free after the rank is gone, including cells that a killed rank held.
    /// Returns `false` while operations of the rank remain to be taken; then call again.
    ///
    /// A process that becomes this rank later must create its own [`Poster`](super::Poster).
    pub fn reclaim<E>(&mut self, pool: OpPool<'_>, rank: u32) -> Result<bool, TakeError<E>> {
        if self.has_more() {
            return Ok(false);
        }
        (self.next, self.left) = turned_around(pool, pool.posted.take_all())?;
        if has_cell_of(pool, rank, self.next, self.left) {
            return Ok(false);
        }
        pool.fill_of(rank);
        Ok(true)
    }

    /// Hands operations with their rank on to `append`, in the order in which each rank posted them,
    /// and gives their cells back.
    ///
    /// A run is the operations of one rank and one `op_count`, and `take` never splits it. `take` stops
    /// after `batch` runs, so that active operations do not wait for long. (NCCL's count allows one run
    /// more.)
    pub fn take<E>(
        &mut self,
        pool: OpPool<'_>,
        batch: u32,
        mut append: impl FnMut(u32, &Op) -> Result<(), E>,
    ) -> Result<Taken, TakeError<E>> {
        if !self.has_more() {
            (self.next, self.left) = turned_around(pool, pool.posted.take_all())?;
        }
        let mut taken = Taken::default();
        let (mut runs, mut run) = (0, None);
        // Cells of one rank, which one push gives back together.
        let mut free: Option<Returned> = None;
        while let Some(index) = self.next.index() {
            let Some(cell) = pool.cell(index).filter(|_| self.left > 0) else {
                return Err(TakeError::Corrupt(index));
            };
            let rank = pool.rank_of(index);
            let op = cell.read().map_err(|error| TakeError::Op { rank, index, error })?;
            if run != Some((rank, op.op_count)) {
                if runs == batch {
                    break;
                }
                runs += 1;
                run = Some((rank, op.op_count));
            }
            append(rank, &op).map_err(|error| TakeError::Append { rank, error })?;
            taken.ops += 1;
            self.left -= 1;
            self.next = cell.next();
            free = Some(match free {
                Some(returned) if returned.rank == rank => {
                    cell.set_next(OpLink::to(returned.first));
                    Returned { first: index, ..returned }
                }
                other => {
                    taken.wake_ranks |= give_back(pool, other);
                    Returned { rank, first: index, last: index }
                }
            });
        }
        taken.wake_ranks |= give_back(pool, free);
        Ok(taken)
    }
}

/// Whether a reversed list contains a cell of a rank.
fn has_cell_of(pool: OpPool<'_>, rank: u32, list: OpLink, len: u32) -> bool {
    let mut rest = list;
    (0..len).any(|_| {
        let Some(index) = rest.index() else { return false };
        rest = pool.cell(index).map_or(OpLink::END, super::Cell::next);
        pool.rank_of(index) == rank
    })
}

/// Linked cells of one rank whose operations the taker has handed on.
struct Returned {
    rank: u32,
    first: u32,
    last: u32,
}

/// Gives the cells back. Returns the rank's bit if the rank had no free cell, else 0.
fn give_back(pool: OpPool<'_>, returned: Option<Returned>) -> u64 {
    let Some(Returned { rank, first, last }) = returned else { return 0 };
    match (pool.free(rank), pool.cell(last)) {
        // No process closes a free list, so the push never fails.
        (Some(head), Some(last)) if head.push(first, last) == Ok(true) => 1 << rank,
        _ => 0,
    }
}

/// Reverses a list and counts its cells. A circular list stays circular after the reversal, so the
/// reader must respect the count.
fn turned_around<E>(pool: OpPool<'_>, list: OpLink) -> Result<(OpLink, u32), TakeError<E>> {
    let (mut rest, mut turned) = (list, OpLink::END);
    for count in 0..=pool.cells.len() {
        let Some(index) = rest.index() else { return Ok((turned, count as u32)) };
        let Some(cell) = pool.cell(index) else { return Err(TakeError::Corrupt(index)) };
        rest = cell.next();
        cell.set_next(turned);
        turned = OpLink::to(index);
    }
    Err(TakeError::Corrupt(rest.index().unwrap_or_default()))
}
