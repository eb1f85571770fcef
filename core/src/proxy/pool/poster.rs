//! A rank's side of the pool.

use super::OpPool;
use crate::proxy::list::Link;
use crate::proxy::{Closed, Op, OpError};

/// Puts one rank's operations into a pool (`ncclLocalOpAppend`, `ncclProxyPost`).
///
/// There must be just one for each rank. It belongs to the pool that it is first used with; which
/// one is passed to each call, so that it need not be borrowed meanwhile.
#[derive(Debug)]
pub struct Poster {
    rank: u32,
    /// Free cells that are already ours.
    free: Link,
    chain: Option<Chain>,
}

/// Operations that are not posted yet, linked from the newest to the oldest.
#[derive(Clone, Copy, Debug)]
struct Chain {
    newest: u32,
    oldest: u32,
    len: u32,
    /// Operation count of the newest, and the oldest that has it too.
    run: Run,
    /// The one before that, and how many there are from it on.
    before_run: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    op_count: u64,
    oldest: u32,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// It is kept, to be posted with what follows.
    Kept,
    /// It is kept; what came before its `op_count` had to be posted. `wake`: the proxy may sleep.
    Posted {
        /// Whether somebody may wait on [`OpPool::posted`].
        wake: bool,
    },
    /// It is not taken: no cell is free. Wait on [`OpPool::free`] and try again.
    NoRoom,
}

/// Why an operation can't be taken, or posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// It could never be moved.
    #[error("local rank {rank}: {error}")]
    Op {
        /// The rank.
        rank: u32,
        /// Why.
        error: OpError,
    },
    /// The proxy stops.
    #[error("local rank {rank}: {Closed}")]
    Closed {
        /// The rank.
        rank: u32,
    },
    /// As many operations of one `op_count` as there are cells; they may not be parted.
    #[error(
        "local rank {rank}: {len} operations of operation count {op_count:#x} fill the pool; they \
         must be posted together"
    )]
    TooMany {
        /// The rank.
        rank: u32,
        /// Their operation count.
        op_count: u64,
        /// How many.
        len: u32,
    },
    /// The pool has no such rank.
    #[error("local rank {rank} of a pool for {nranks}")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// Ranks of the pool.
        nranks: u32,
    },
    /// Somebody wrote where only this pool's code may.
    #[error("local rank {rank}: its free list leads to cell {index}, which is not the rank's")]
    Corrupt {
        /// The rank.
        rank: u32,
        /// Where the list leads.
        index: u32,
    },
}

impl Poster {
    /// For a local rank, with nothing in it.
    pub const fn new(rank: u32) -> Self {
        Poster { rank, free: Link::END, chain: None }
    }

    /// Number of operations that are not posted yet.
    pub fn len(&self) -> u32 {
        self.chain.map_or(0, |chain| chain.len)
    }

    /// Whether all operations are posted.
    pub fn is_empty(&self) -> bool {
        self.chain.is_none()
    }

    /// Takes an operation, to be posted by [`Poster::post`].
    ///
    /// When all cells of the rank are in use for what is not posted yet, everything but the last
    /// `op_count` is posted: the last one's operations may not all be there yet, and would no
    /// longer be merged if they were posted apart.
    pub fn append(&mut self, pool: OpPool<'_>, op: &Op) -> Result<Appended, PostError> {
        let rank = self.rank;
        op.check().map_err(|error| PostError::Op { rank, error })?;
        let Some(index) = self.claim(pool)? else { return Ok(Appended::NoRoom) };
        let Some(cell) = pool.cell(index) else { return Err(PostError::Corrupt { rank, index }) };
        cell.write(op);
        let run = Run { op_count: op.op_count, oldest: index };
        let chain = match self.chain {
            None => Chain { newest: index, oldest: index, len: 1, run, before_run: None },
            Some(chain) => {
                cell.set_next(Link::to(chain.newest));
                let len = chain.len + 1;
                if chain.run.op_count == op.op_count {
                    Chain { newest: index, len, ..chain }
                } else {
                    let before_run = Some((chain.newest, chain.len));
                    Chain { newest: index, len, run, before_run, ..chain }
                }
            }
        };
        self.chain = Some(chain);
        if chain.len < pool.per_rank() {
            return Ok(Appended::Kept);
        }
        let Run { op_count, oldest } = chain.run;
        let Some((newest_before, len_before)) = chain.before_run else {
            return Err(PostError::TooMany { rank, op_count, len: chain.len });
        };
        let wake = self.push(pool, newest_before, chain.oldest)?;
        let len = chain.len - len_before;
        self.chain = Some(Chain { oldest, len, before_run: None, ..chain });
        Ok(Appended::Posted { wake })
    }

    /// Posts all that was appended (`ncclProxyStart`). Says whether somebody may wait on
    /// [`OpPool::posted`] and is to be woken.
    pub fn post(&mut self, pool: OpPool<'_>) -> Result<bool, PostError> {
        let Some(chain) = self.chain else { return Ok(false) };
        let wake = self.push(pool, chain.newest, chain.oldest)?;
        self.chain = None;
        Ok(wake)
    }

    fn push(&self, pool: OpPool<'_>, newest: u32, oldest: u32) -> Result<bool, PostError> {
        let rank = self.rank;
        let Some(last) = pool.cell(oldest) else {
            return Err(PostError::Corrupt { rank, index: oldest });
        };
        pool.posted.push(newest, last).map_err(|Closed| PostError::Closed { rank })
    }

    /// A free cell, from our own list or the shared one.
    fn claim(&mut self, pool: OpPool<'_>) -> Result<Option<u32>, PostError> {
        let rank = self.rank;
        let Some(shared) = pool.free(rank) else {
            return Err(PostError::NoSuchRank { rank, nranks: pool.nranks() });
        };
        if self.free == Link::END {
            self.free = shared.take_all();
        }
        let Some(index) = self.free.index() else { return Ok(None) };
        match pool.cell(index) {
            Some(cell) if pool.rank_of(index) == rank => {
                self.free = cell.next();
                Ok(Some(index))
            }
            _ => Err(PostError::Corrupt { rank, index }),
        }
    }
}
