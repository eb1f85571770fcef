//! Waiting by asking again.

use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::error::Kind;

/// Calls between two looks at the clock. A caller that waits so long lets other threads run.
const CALLS: u32 = 64;

/// Asks until there is an answer, at most `timeout`.
pub(crate) fn wait<T>(
    what: &'static str,
    timeout: Duration,
    mut ask: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    loop {
        for _ in 0..CALLS {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
        }
        if start.elapsed() >= timeout {
            return Err(Kind::TimedOut { what, within: timeout }.into());
        }
        thread::yield_now();
    }
}
