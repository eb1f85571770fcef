//! The poster is the rank's side of the pool.

use super::OpPool;
use crate::proxy::link::OpLink;
use crate::proxy::{Closed, Op, OpError};

/// Puts one rank's operations into a pool (`ncclLocalOpAppend`, `ncclProxyPost`).
///
/// Each rank must have exactly one poster. A poster belongs to the pool that it is first used with.
/// Each call takes the pool as an argument, so the poster does not borrow it between calls.
#[derive(Debug)]
pub struct Poster {
    rank: u32,
    /// Free cells that this poster has already taken from the pool.
    free: OpLink,
    chain: Option<Chain>,
}

/// Operations that are not posted yet, linked from the newest to the oldest.
#[derive(Clone, Copy, Debug)]
struct Chain {
    newest: u32,
    oldest: u32,
    len: u32,
    /// The newest operation's count, and the oldest operation that has the same count.
    run: Run,
    /// The newest operation before the run, and the length of the chain up to it.
    before_run: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    op_count: u64,
    oldest: u32,
}

/// The result of appending an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Appended {
    /// The poster keeps the operation and posts it together with later ones.
    Queued,
    /// The poster keeps the operation, and it has posted all operations before this `op_count`. If
    /// `wake` is set, the proxy may be asleep.
    Posted {
        /// Whether a thread may wait on [`OpPool::posted`].
        wake: bool,
    },
    /// The poster did not take the operation, because no cell is free. Wait on [`OpPool::free`] and try
    /// again.
    NoRoom,
}

/// The reason why the poster can't take or post an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The operation is invalid and could never be moved.
    #[error("local rank {rank}: {error}")]
    Op {
        /// The rank of the poster.
        rank: u32,
        /// The reason why the operation is invalid.
        error: OpError,
    },
    /// The proxy has been told to stop.
    #[error("local rank {rank}: {Closed}")]
    Closed {
        /// The rank of the poster.
        rank: u32,
    },
    /// The operations of one `op_count` fill all cells of the rank; they must be posted together.
    #[error(
        "local rank {rank}: {len} operations of operation count {op_count:#x} fill the pool; they \
         must be posted together"
    )]
    TooMany {
        /// The rank of the poster.
        rank: u32,
        /// The operations' common count.
        op_count: u64,
        /// Number of operations.
        len: u32,
    },
    /// The pool has no such rank.
    #[error("local rank {rank} of a pool for {nranks}")]
    NoSuchRank {
        /// The rank of the poster.
        rank: u32,
        /// Number of ranks of the pool.
        nranks: u32,
    },
    /// Other code than this pool's has written into the pool's memory.
    #[error("local rank {rank}: its free list leads to cell {index}, which is not the rank's")]
    Corrupt {
        /// The rank of the poster.
        rank: u32,
        /// The invalid index that the list leads to.
        index: u32,
    },
}

impl Poster {
    /// Creates an empty poster for a local rank.
    pub const fn new(rank: u32) -> Self {
        Poster { rank, free: OpLink::END, chain: None }
    }

    /// Returns the number of operations that are not posted yet.
    pub fn len(&self) -> u32 {
        self.chain.map_or(0, |chain| chain.len)
    }

    /// Returns whether all operations are posted.
    pub fn is_empty(&self) -> bool {
        self.chain.is_none()
    }

    /// Takes an operation, which [`Poster::post`] posts.
    ///
    /// If unposted operations fill all cells of the rank, this posts all operations except those of the
    /// last `op_count`. More operations of the last count may follow, and the engine would not merge
    /// them if they were posted apart.
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
                cell.set_next(OpLink::to(chain.newest));
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
            return Ok(Appended::Queued);
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

    /// Posts all appended operations (`ncclProxyStart`). Returns whether the caller must wake a thread
    /// that may wait on [`OpPool::posted`].
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

    /// Takes a free cell from the poster's own list, or else from the shared list.
    fn claim(&mut self, pool: OpPool<'_>) -> Result<Option<u32>, PostError> {
        let rank = self.rank;
        let Some(shared) = pool.free(rank) else {
            return Err(PostError::NoSuchRank { rank, nranks: pool.nranks() });
        };
        if self.free == OpLink::END {
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
