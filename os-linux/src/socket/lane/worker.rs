//! A thread that moves the chunks of some lanes, and sleeps while none can move.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Lane, LaneDirection};

/// The longest sleep. New work wakes a worker; the limit covers a wake-up that is missed.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A worker thread. Dropping this value ends the thread and waits for it.
pub(super) struct Worker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    lanes: Vec<Arc<Lane>>,
    /// An event descriptor that is readable when there is new work.
    news: OwnedFd,
    is_over: AtomicBool,
}

impl Worker {
    pub(super) fn start(lanes: Vec<Arc<Lane>>) -> io::Result<Worker> {
        let news = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { lanes, news, is_over: AtomicBool::new(false) });
        let thread = thread::Builder::new().name("invar-socket".to_owned());
        let thread = thread.spawn({
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        Ok(Worker { shared, thread: Some(thread) })
    }

    pub(super) fn wake(&self) {
        // The write fails only if the counter is full, and then a wake-up is already pending.
        let _ = rustix::io::write(&self.shared.news, &1u64.to_ne_bytes());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // The thread is over in either case, even if it panicked.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            // The loop serves each lane in turn, so that none starves the others.
            let moved = self.lanes.iter().filter(|lane| lane.step()).count();
            if moved == 0 {
                self.sleep();
            }
        }
    }

    /// Sleeps until a socket that a chunk waits for is ready, or new work arrives.
    fn sleep(&self) {
        let waiting = self.lanes.iter().filter(|lane| lane.is_waiting());
        let ready = |lane: &Lane| match lane.direction {
            LaneDirection::Send => PollFlags::OUT,
            LaneDirection::Recv => PollFlags::IN,
        };
        let mut fds: Vec<PollFd<'_>> =
            waiting.map(|lane| PollFd::new(&lane.stream, ready(lane))).collect();
        fds.push(PollFd::new(&self.news, PollFlags::IN));
        // The loop checks the lanes next, whatever the result.
        let _ = poll(&mut fds, Some(&SLEEP_MAX));
        let _ = rustix::io::read(&self.news, &mut [0; 8]);
    }
}
