//! Signals, which belong to the program.

use std::{mem, ptr};

/// Runs `start` with all signals blocked: a thread that it starts never runs the program's handlers.
pub(crate) fn without_signals<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: the sets are valid places for both calls, which change the signals of this thread alone.
    unsafe {
        let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut());
        result
    }
}
