//! A rank's end of the operation pool: posts operations to a proxy.

use std::time::Duration;

use invar_core::proxy::{Appended, Op, PostError, Poster};

use super::bound::{Bound, WaitError};
use super::{SharedOps, futex};
use crate::abort::Abort;

/// Posts the operations of one local rank to one proxy. Each rank has exactly one such object.
#[derive(Debug)]
pub struct RankOps {
    shared: SharedOps,
    rank: u32,
    poster: Poster,
    abort: Abort,
    timeout: Duration,
}

/// The reason why operations cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankOpsError {
    /// The pool refuses the operation.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The proxy returned no free cell in time.
    #[error("local rank {rank} waits for the proxy to take operations: {error}")]
    Wait {
        /// The local rank.
        rank: u32,
        /// The reason why the wait ended.
        error: WaitError,
    },
}

impl RankOps {
    /// Makes the poster of local rank `rank`, which waits at most `timeout` for the proxy.
    pub fn new(shared: SharedOps, rank: u32, abort: Abort, timeout: Duration) -> Self {
        RankOps { shared, rank, poster: Poster::new(rank), abort, timeout }
    }

    /// Appends an operation, which [`RankOps::post`] posts. Waits while the proxy has not returned the
    /// cells of earlier operations.
    pub fn append(&mut self, op: &Op) -> Result<(), RankOpsError> {
        let bound = Bound::new(&self.abort, self.timeout);
        let pool = self.shared.pool();
        loop {
            match self.poster.append(pool, op)? {
                Appended::Queued | Appended::Posted { wake: false } => return Ok(()),
                Appended::Posted { wake: true } => {
                    futex::wake(pool.posted());
                    return Ok(());
                }
                Appended::NoRoom => {
                    let rank = self.rank;
                    if pool.posted().is_closed() {
                        return Err(PostError::Closed { rank }.into());
                    }
                    let nap = bound.nap().map_err(|error| RankOpsError::Wait { rank, error })?;
                    if let Some(free) = pool.free(rank) {
                        futex::wait_while_empty(free, nap);
                    }
                }
            }
        }
    }

    /// Posts all appended operations together.
    pub fn post(&mut self) -> Result<(), RankOpsError> {
        let pool = self.shared.pool();
        if self.poster.post(pool)? {
            futex::wake(pool.posted());
        }
        Ok(())
    }
}
