//! The proxy's side of the pool.

use super::OpPool;
use crate::proxy::list::Link;
use crate::proxy::{Op, OpError};

/// Takes posted operations out of a pool (`ncclProxyGetPostedOps`). There must be just one.
#[derive(Debug, Default)]
pub struct Taker {
    /// What is taken from the pool and not handed on yet, the oldest first.
    next: Link,
    /// How many that are: another process may make the links lead anywhere.
    left: u32,
}

/// What [`Taker::take`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Operations handed on.
    pub ops: u32,
    /// Ranks (a bit each) that had no free cell and have some now: they may wait on
    /// [`OpPool::free`].
    pub wake_ranks: u64,
}

/// Why operations can't be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError<E> {
    /// A cell holds no operation that could be moved.
    #[error("cell {index}, of local rank {rank}: {error}")]
    Op {
        /// The rank.
        rank: u32,
        /// The cell.
        index: u32,
        /// Why.
        error: OpError,
    },
    /// Somebody wrote where only this pool's code may.
    #[error("the list of posted operations leads to cell {0}, and never ends or leaves the pool")]
    Corrupt(u32),
    /// The one that they are handed on to refuses.
    #[error("an operation of local rank {rank}: {error}")]
    Append {
        /// The rank.
        rank: u32,
        /// Why.
        error: E,
    },
}

impl Taker {
    /// Whether operations are taken from the pool that are not handed on yet.
    pub fn has_more(&self) -> bool {
        self.next != Link::END
    }

    /// Makes all cells of a rank free that is gone, also those that it held when it was killed.
    /// `false` where operations of it are still to be taken: call again.
    ///
    /// Whoever may be that rank from now on begins with a [`Poster`](super::Poster) of its own.
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

    /// Hands operations on to `append`, with their rank, in the order in which the rank posted
    /// them, and gives their cells back.
    ///
    /// Stops after `batch` runs, so that active operations are not kept waiting for long. A run is
    /// of one rank and one `op_count`, and is not parted. (NCCL's count lets one more pass.)
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
        // Cells of one rank, to be given back by one push.
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
                    cell.set_next(Link::to(returned.first));
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

/// Whether a list that was turned around has a cell of a rank.
fn has_cell_of(pool: OpPool<'_>, rank: u32, list: Link, len: u32) -> bool {
    let mut rest = list;
    (0..len).any(|_| {
        let Some(index) = rest.index() else { return false };
        rest = pool.cell(index).map_or(Link::END, super::Cell::next);
        pool.rank_of(index) == rank
    })
}

/// Cells of one rank that are done with, linked.
struct Returned {
    rank: u32,
    first: u32,
    last: u32,
}

/// Says, as a bit, whether the rank had none.
fn give_back(pool: OpPool<'_>, returned: Option<Returned>) -> u64 {
    let Some(Returned { rank, first, last }) = returned else { return 0 };
    match (pool.free(rank), pool.cell(last)) {
        // A free list is never closed.
        (Some(head), Some(last)) if head.push(first, last) == Ok(true) => 1 << rank,
        _ => 0,
    }
}

/// Links a list the other way around, and counts it. One that leads in a circle comes out as a
/// circle too, so that the count matters to whoever follows it.
fn turned_around<E>(pool: OpPool<'_>, list: Link) -> Result<(Link, u32), TakeError<E>> {
    let (mut rest, mut turned) = (list, Link::END);
    for count in 0..=pool.cells.len() {
        let Some(index) = rest.index() else { return Ok((turned, count as u32)) };
        let Some(cell) = pool.cell(index) else { return Err(TakeError::Corrupt(index)) };
        rest = cell.next();
        cell.set_next(turned);
        turned = Link::to(index);
    }
    Err(TakeError::Corrupt(rest.index().unwrap_or_default()))
}
