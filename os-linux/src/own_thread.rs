//! A thread that serves its process.

use std::io;
use std::process;
use std::thread::{self, JoinHandle, Thread};

/// A thread that ends before this value has gone. Its owner first tells it to end.
///
/// A child of `fork` has a copy of the value, and no thread: the copy waits for nothing.
#[derive(Debug)]
pub struct OwnThread {
    process: u32,
    thread: Option<JoinHandle<()>>,
}

impl OwnThread {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// The system has no room for a thread.
    pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(OwnThread { process: process::id(), thread: Some(thread) })
    }

    /// Whether the thread is one of this process.
    pub fn is_here(&self) -> bool {
        self.process == process::id()
    }

    /// Returns the thread's handle, for the process that it serves.
    pub fn handle(&self) -> Option<&Thread> {
        self.thread.as_ref().filter(|_| self.is_here()).map(JoinHandle::thread)
    }

    /// Whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Lets the thread of this process go on alone.
    pub fn detach(mut self) {
        if self.is_here() {
            drop(self.thread.take());
        }
    }

    /// Whether the thread is the calling one.
    pub fn is_current(&self) -> bool {
        let own = self.thread.as_ref().map(|thread| thread.thread().id());
        own == Some(thread::current().id())
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        let (is_here, is_current) = (self.is_here(), self.is_current());
        match self.thread.take() {
            // A value that the thread itself drops may own the thread, and a thread does not wait for itself.
            Some(thread) if is_here && is_current => drop(thread),
            Some(thread) if is_here => drop(thread.join()),
            // A copy of the process has no such thread to wait for, or to detach.
            thread => std::mem::forget(thread),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_thread_has_ended_once_its_value_is_dropped() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let thread = OwnThread::start("invar-test", {
            let has_ended = Arc::clone(&has_ended);
            move || {
                thread::sleep(Duration::from_millis(20));
                has_ended.store(true, Ordering::Relaxed);
            }
        });
        let thread = thread.unwrap();
        assert!(thread.is_here());
        drop(thread);
        assert!(has_ended.load(Ordering::Relaxed));
    }

    #[test]
    fn a_thread_that_drops_its_own_value_does_not_wait_for_itself() {
        let (give, take) = channel::<OwnThread>();
        let (done, is_done) = channel();
        let run = move || {
            drop(take.recv());
            done.send(()).unwrap();
        };
        give.send(OwnThread::start("invar-test", run).unwrap()).unwrap();
        is_done.recv_timeout(Duration::from_secs(60)).unwrap();
    }
}
