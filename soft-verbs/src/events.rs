//! Events: a queue with a descriptor that is readable while the queue has events.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// An asynchronous event: its code, and the address of the object that it is about.
#[derive(Clone, Copy)]
pub(crate) struct Raised {
    pub(crate) event: u32,
    pub(crate) element: usize,
}

/// A FIFO queue of events. Its descriptor, a socket, has a byte to read for each event, as far as the socket has room,
/// so that `epoll` reports each event as an edge. Only a holder of the lock takes or sends bytes. A socket lets a thread wait for the byte and not take it, in a call that
/// the kernel restarts after a signal (`SA_RESTART`); `poll` is never restarted.
pub(crate) struct EventQueue<T> {
    fd: OwnedFd,
    sender: OwnedFd,
    queued: Mutex<Queued<T>>,
}

struct Queued<T> {
    events: VecDeque<T>,
    /// Number of bytes in the socket: as many as events or fewer, and at least one if there are events.
    bytes: usize,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> io::Result<Self> {
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let (fd, sender) = socketpair(family, SocketType::STREAM, flags, None)?;
        let queued = Mutex::new(Queued { events: VecDeque::new(), bytes: 0 });
        Ok(EventQueue { fd, sender, queued })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Queued<T>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: T) {
        let mut queued = self.lock();
        // An empty socket takes a byte, and a full one need not.
        let sent = send(&self.sender, &[1], SendFlags::DONTWAIT);
        queued.bytes += usize::from(sent.is_ok());
        queued.events.push_back(event);
    }

    /// Removes events. The others stay.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut queued = self.lock();
        queued.events.retain(keep);
        self.take_bytes(&mut queued);
    }

    /// Takes the bytes of events that are gone.
    fn take_bytes(&self, queued: &mut Queued<T>) {
        while queued.bytes > queued.events.len() {
            let _ = recv(&self.fd, &mut [0u8; 1], RecvFlags::DONTWAIT);
            queued.bytes -= 1;
        }
    }

    /// Takes the oldest event for which `accept` has a result, and drops those before it. `accept` is called
    /// under the lock, so that nobody removes the event meanwhile. Without an event the call waits, unless
    /// the program made the descriptor non-blocking. The wait has no end of its own: the program asked to
    /// sleep until an event comes.
    pub(crate) fn next<R>(&self, accept: impl Fn(T) -> Option<R>) -> Result<R, c_int> {
        loop {
            let mut queued = self.lock();
            while let Some(event) = queued.events.pop_front() {
                self.take_bytes(&mut queued);
                if let Some(accepted) = accept(event) {
                    return Ok(accepted);
                }
            }
            drop(queued);
            recv(&self.fd, &mut [0u8; 1], RecvFlags::PEEK).map_err(|error| error.raw_os_error())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::fs::OFlags;

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
        assert_eq!([queue.next(Some), queue.next(Some)], [Ok(1), Ok(2)]);
        assert!(is_readable(&queue));
        queue.retain(|event| *event != 3);
        assert!(!is_readable(&queue));
        queue.push(4);
        assert_eq!(queue.next(Some), Ok(4));
        assert!(!is_readable(&queue));
        rustix::fs::fcntl_setfl(&queue.fd, OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.next(Some), Err(libc::EAGAIN));
    }

    #[test]
    fn events_that_nobody_may_take_go() {
        let queue = EventQueue::new().unwrap();
        (1..=3).for_each(|event| queue.push(event));
        assert_eq!(queue.next(|event| (event != 1).then_some(event)), Ok(2));
        rustix::fs::fcntl_setfl(&queue.fd, OFlags::NONBLOCK).unwrap();
        assert_eq!(queue.next(|event| (event != 3).then_some(event)), Err(libc::EAGAIN));
        assert!(!is_readable(&queue));
    }

    #[test]
    fn a_sleeper_wakes_for_an_event() {
        let queue = Arc::new(EventQueue::new().unwrap());
        let sleeper = std::thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.next(Some)
        });
        queue.push(7);
        assert_eq!(sleeper.join().unwrap(), Ok(7));
    }
}
