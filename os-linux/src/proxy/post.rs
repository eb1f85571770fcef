//! A rank's operations, on their way to a proxy.

use std::time::Duration;

use invar_core::proxy::{Appended, Op, PostError, Poster};

use super::abort::{Abort, Bound, WaitError};
use super::{SharedOps, futex};

/// Posts one local rank's operations to one proxy. There must be just one for each rank.
#[derive(Debug)]
pub struct RankOps {
    shared: SharedOps,
    rank: u32,
    poster: Poster,
    abort: Abort,
    timeout: Duration,
}

/// Why operations can't be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankOpsError {
    /// They can't at all.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The proxy gave no cell back in time.
    #[error("local rank {rank} waits for the proxy to take operations: {error}")]
    Wait {
        /// The rank.
        rank: u32,
        /// Why no longer.
        error: WaitError,
    },
}

impl RankOps {
    /// For local rank `rank`. Waits for the proxy for `timeout` at most.
    pub fn new(shared: SharedOps, rank: u32, abort: Abort, timeout: Duration) -> Self {
        RankOps { shared, rank, poster: Poster::new(rank), abort, timeout }
    }

    /// Takes an operation, to be posted by [`RankOps::post`]. Waits while the proxy has not given
    /// back the cells of earlier ones.
    pub fn append(&mut self, op: &Op) -> Result<(), RankOpsError> {
        let bound = Bound::new(&self.abort, self.timeout);
        let pool = self.shared.pool();
        loop {
            match self.poster.append(pool, op)? {
                Appended::Kept | Appended::Posted { wake: false } => return Ok(()),
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

    /// Posts all that was appended, together.
    pub fn post(&mut self) -> Result<(), RankOpsError> {
        let pool = self.shared.pool();
        if self.poster.post(pool)? {
            futex::wake(pool.posted());
        }
        Ok(())
    }
}
