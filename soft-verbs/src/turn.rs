//! State that a program uses in turns: one call begins a turn, and another one ends it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// State of which one thread at a time has a turn, as with a lock that C code takes and releases.
pub(crate) struct Turn<T> {
    state: Mutex<Taken<T>>,
    ended: Condvar,
}

struct Taken<T> {
    is_taken: bool,
    value: T,
}

impl<T> Turn<T> {
    pub(crate) fn new(value: T) -> Self {
        Turn { state: Mutex::new(Taken { is_taken: false, value }), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Taken<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a turn. The call waits, without a limit, for the end of another thread's turn: the program
    /// owes that end.
    pub(crate) fn begin(&self) {
        let mut state = self.lock();
        while state.is_taken {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_taken = true;
    }

    /// Uses the state of the thread's turn.
    #[inline]
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        call(&mut self.lock().value)
    }

    pub(crate) fn end(&self) {
        self.lock().is_taken = false;
        self.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn turns_of_threads_do_not_mix() {
        let turn = Arc::new(Turn::new(0));
        let add = |turn: &Turn<i32>| {
            for _ in 0..500 {
                turn.begin();
                let before = turn.with(|value| *value);
                thread::yield_now();
                turn.with(|value| *value = before + 1);
                turn.end();
            }
        };
        let other = thread::spawn({
            let turn = Arc::clone(&turn);
            move || add(&turn)
        });
        add(&turn);
        other.join().unwrap();
        assert_eq!(turn.with(|value| *value), 1000);
    }
}
