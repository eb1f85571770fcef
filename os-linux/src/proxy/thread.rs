//! Starts the proxy's threads.

use std::io;
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_setaffinity};

/// Starts a named thread, on `cpus` if given. The kernel cuts a thread's name off after 15 bytes.
pub(super) fn spawn<R: Send + 'static>(
    name: String,
    cpus: Option<CpuSet>,
    run: impl FnOnce() -> R + Send + 'static,
) -> io::Result<JoinHandle<R>> {
    thread::Builder::new().name(name).spawn(move || {
        if let Some(cpus) = cpus {
            // On other processors the thread is slower, but still correct.
            let _ = sched_setaffinity(None, &cpus);
        }
        run()
    })
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;
    use crate::processors;

    #[test]
    fn a_thread_runs_under_its_name_and_where_it_may() {
        let allowed = sched_getaffinity(None).unwrap();
        let one = processors::allowed()[0];
        let thread = spawn("InvarProgress 7".to_owned(), Some(one), || {
            (std::fs::read_to_string("/proc/thread-self/comm").unwrap(), sched_getaffinity(None))
        });
        let (name, cpus) = thread.unwrap().join().unwrap();
        assert_eq!((name.as_str(), cpus.unwrap()), ("InvarProgress 7\n", one));
        assert_eq!(sched_getaffinity(None).unwrap(), allowed, "only that thread");
    }
}
