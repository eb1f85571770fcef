//! Events: a queue with a descriptor that is readable while the queue has events.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{read, write};

/// An asynchronous event: its code, and the address of the object that it is about.
#[derive(Clone, Copy)]
pub(crate) struct Raised {
    pub(crate) event: u32,
    pub(crate) element: usize,
}

/// Events in order. The descriptor counts 1 while there are any, and 0 otherwise. Only a holder of the
/// lock reads or writes it.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    events: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(EventQueue { fd: eventfd(0, EventfdFlags::CLOEXEC)?, events: Mutex::default() })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        let mut events = self.lock();
        if events.is_empty() {
            // An eventfd that counts 0 takes a 1.
            let _ = write(&self.fd, &1u64.to_ne_bytes());
        }
        events.push_back(event);
    }

    /// Removes events. The others stay.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut events = self.lock();
        let had_events = !events.is_empty();
        events.retain(keep);
        if had_events && events.is_empty() {
            self.drain();
        }
    }

    fn drain(&self) {
        let _ = read(&self.fd, &mut [0u8; 8]);
    }

    /// Takes the oldest event, and waits for one unless the program made the descriptor non-blocking.
    /// The wait has no end of its own: the program asked to sleep until an event comes.
    pub(crate) fn next(&self) -> Result<T, c_int> {
        self.next_of(Some)
    }

    /// Takes the oldest event for which `accept` has a result, and drops those before it. `accept` is called
    /// under the lock, so that nobody removes the event meanwhile.
    pub(crate) fn next_of<R>(&self, accept: impl Fn(T) -> Option<R>) -> Result<R, c_int> {
        loop {
            let mut events = self.lock();
            while let Some(event) = events.pop_front() {
                if events.is_empty() {
                    self.drain();
                }
                if let Some(accepted) = accept(event) {
                    return Ok(accepted);
                }
            }
            drop(events);
            let flags = fcntl_getfl(&self.fd).map_err(|error| error.raw_os_error())?;
            if flags.contains(OFlags::NONBLOCK) {
                return Err(libc::EAGAIN);
            }
            let mut polled = [PollFd::new(&self.fd, PollFlags::IN)];
            poll(&mut polled, None).map_err(|error| error.raw_os_error())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn is_readable<T>(queue: &EventQueue<T>) -> bool {
        let mut polled = [PollFd::new(&queue.fd, PollFlags::IN)];
        poll(&mut polled, Some(&Default::default())).unwrap() == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_are_queued() {
        let queue = EventQueue::new().unwrap();
        assert!(!is_readable(&queue));
        (1..=3).for_each(|event| queue.push(event));
        assert!(is_readable(&queue));
        assert_eq!([queue.next(), queue.next()], [Ok(1), Ok(2)]);
        assert!(is_readable(&queue));
        queue.retain(|event| *event != 3);
        assert!(!is_readable(&queue));
        queue.push(4);
        assert_eq!(queue.next(), Ok(4));
        assert!(!is_readable(&queue));
        rustix::fs::fcntl_setfl(&queue.fd, OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.next(), Err(libc::EAGAIN));
    }

    #[test]
    fn events_that_nobody_may_take_go() {
        let queue = EventQueue::new().unwrap();
        (1..=3).for_each(|event| queue.push(event));
        assert_eq!(queue.next_of(|event| (event != 1).then_some(event)), Ok(2));
        rustix::fs::fcntl_setfl(&queue.fd, OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.next_of(|event| (event != 3).then_some(event)), Err(libc::EAGAIN));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_sleeper_wakes_for_an_event() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let sleeper = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.next()
        });
        queue.push(7);
        assert_eq!(sleeper.join().unwrap(), Ok(7));
    }
}
