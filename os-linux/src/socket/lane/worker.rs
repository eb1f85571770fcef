//! A thread that moves the chunks of some lanes, and sleeps while none can move.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Lane, LaneDirection};
use crate::interest::Interest;
use crate::own_thread::OwnThread;

/// The longest sleep. New work wakes a worker; the limit covers a wake-up that is missed.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A worker thread. Dropping this value ends the thread and waits for it.
pub(super) struct Worker {
    shared: Arc<Shared>,
    _thread: OwnThread,
}

struct Shared {
    lanes: Vec<Arc<Lane>>,
    /// An event descriptor that is readable when there is new work.
    news: OwnedFd,
    is_over: AtomicBool,
    /// An event descriptor that is readable when a lane has moved bytes or has failed, for an owner that waits.
    moved: OwnedFd,
    /// Whether the owner waits.
    is_awaited: AtomicBool,
}

impl Worker {
    pub(super) fn start(lanes: Vec<Arc<Lane>>) -> io::Result<Worker> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (news, moved) = (event()?, event()?);
        let (is_over, is_awaited) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Arc::new(Shared { lanes, news, is_over, moved, is_awaited });
        let _thread = OwnThread::start("invar-socket", {
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Worker { shared, _thread })
    }

    pub(super) fn wake(&self) {
        // The write fails only if the counter is full, and then a wake-up is already pending.
        let _ = rustix::io::write(&self.shared.news, &1u64.to_ne_bytes());
    }
}

impl Worker {
    /// Arms the owner's event for the next chunk that moves. Look for moved chunks afterwards, before the
    /// sleep.
    pub(super) fn arm(&self, interest: &mut Interest) {
        let _ = rustix::io::read(&self.shared.moved, &mut [0; 8]);
        self.shared.is_awaited.store(true, Ordering::SeqCst);
        // The worker counts the chunk before it looks whether the owner waits.
        fence(Ordering::SeqCst);
        interest.readable(&self.shared.moved);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.wake();
    }
}

impl Shared {
    fn run(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            // The loop serves each lane in turn, so that none starves the others.
            let moved = self.lanes.iter().filter(|lane| lane.step()).count();
            if moved == 0 {
                self.sleep();
            } else {
                self.tell();
            }
        }
    }

    /// Ends the wait of an owner that waits for chunks.
    fn tell(&self) {
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
        {
            // The write fails only if the counter is full, and then the owner is woken already.
            let _ = rustix::io::write(&self.moved, &1u64.to_ne_bytes());
        }
    }

    /// Sleeps until a socket that a chunk waits for is ready, or new work arrives.
    fn sleep(&self) {
        let waiting = self.lanes.iter().filter(|lane| lane.is_waiting());
        let ready = |lane: &Lane| match lane.direction {
            LaneDirection::Send => PollFlags::OUT,
            LaneDirection::Recv => PollFlags::IN,
        };
        let waiting: Vec<_> = waiting.map(|lane| (lane.stream(), ready(lane))).collect();
        let mut fds: Vec<PollFd<'_>> =
            waiting.iter().map(|(stream, ready)| PollFd::new(&**stream, *ready)).collect();
        fds.push(PollFd::new(&self.news, PollFlags::IN));
        // The loop checks the lanes next, whatever the result.
        let _ = poll(&mut fds, Some(&SLEEP_MAX));
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
    }
}
