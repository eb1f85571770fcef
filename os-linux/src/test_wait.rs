//! A wait that ends, for the tests of this crate.

use std::thread;
use std::time::{Duration, Instant};

/// The longest wait of a test. No step of a test takes so long on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Polls until there is an answer.
///
/// # Panics
/// Panics after [`LIMIT`], and names what was waited for.
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = poll() {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::yield_now();
    }
}
