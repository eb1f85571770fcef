//! Waits that end: a test that waits in vain fails, and says for what it has waited.

use std::thread;
use std::time::{Duration, Instant};

/// The longest wait of a test. No step of a test takes so long on any machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The result of one poll.
pub trait Answer {
    /// The value that the last poll brings.
    type Value;

    /// Returns `None` if the wait goes on.
    fn value(self) -> Option<Self::Value>;
}

impl Answer for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Answer for Option<T> {
    type Value = T;

    fn value(self) -> Option<T> {
        self
    }
}

/// Polls until the answer is `true` or `Some`. Use this function where the polls themselves move the work.
///
/// # Panics
/// Panics after [`LIMIT`].
pub fn until<A: Answer>(what: &str, mut poll: impl FnMut() -> A) -> A::Value {
    let start = Instant::now();
    loop {
        // A poll may cost less than the clock and the scheduler.
        for _ in 0..64 {
            if let Some(value) = poll().value() {
                return value;
            }
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::yield_now();
    }
}

/// Looks every millisecond until the answer is `true` or `Some`. Use this function where other threads or
/// processes move the work.
///
/// # Panics
/// Panics after [`LIMIT`].
pub fn watch<A: Answer>(what: &str, mut look: impl FnMut() -> A) -> A::Value {
    let start = Instant::now();
    loop {
        if let Some(value) = look().value() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Looks every millisecond for as long as `time`.
pub fn throughout(time: Duration, mut look: impl FnMut()) {
    let start = Instant::now();
    while start.elapsed() < time {
        look();
        thread::sleep(Duration::from_millis(1));
    }
}
