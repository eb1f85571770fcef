//! How the proxy's threads are started.

use std::io;
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_setaffinity};

/// Starts a thread with a name, on `cpus` where there are any. A thread's name has room for 15
/// bytes; the rest is cut off.
pub(super) fn spawn<R: Send + 'static>(
    name: String,
    cpus: Option<CpuSet>,
    run: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    thread::Builder::new().name(name).spawn(move || {
        if let Some(cpus) = cpus {
            // Anywhere else it is slower and as right.
            let _ = sched_setaffinity(None, &cpus);
        }
        run()
    })
}
