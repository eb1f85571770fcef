//! The sleep of a thread that waits for many descriptors, each known by a number.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

/// Number of descriptors that one call takes note of.
const BATCH: usize = 64;
/// The number of the event descriptor.
const CALL: u64 = 0;

/// The descriptors that end the sleeps of one thread.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
    /// An event descriptor, by which other threads end a sleep.
    call: OwnedFd,
}

impl Poller {
    /// Creates an empty set of descriptors.
    ///
    /// # Errors
    /// The system has no room for a descriptor.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, call.as_fd(), EventData::new_u64(CALL), EventFlags::IN)?;
        Ok(Poller { epoll, call })
    }

    /// Lets a descriptor that is readable end one sleep, with this number. Numbers begin at 1. The set forgets
    /// a descriptor that is closed.
    ///
    /// # Errors
    /// The system has no memory for a further descriptor.
    pub fn watch(&self, descriptor: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let (data, flags) = (EventData::new_u64(number), EventFlags::IN | EventFlags::ONESHOT);
        match epoll::modify(&self.epoll, descriptor, data, flags) {
            Err(Errno::NOENT) => Ok(epoll::add(&self.epoll, descriptor, data, flags)?),
            told => Ok(told?),
        }
    }

    /// Ends the thread's sleep.
    pub fn call(&self) {
        // The write fails only if the counter is full, and then the thread is called already.
        let _ = rustix::io::write(&self.call, &1_u64.to_ne_bytes());
    }

    /// Sleeps until there is news, at most `within`, and gives `news` the numbers of the descriptors that have
    /// any.
    pub fn sleep(&self, within: Option<Duration>, mut news: impl FnMut(u64)) {
        let mut events = [MaybeUninit::<Event>::uninit(); BATCH];
        let within = within.and_then(|within| Timespec::try_from(within).ok());
        // A signal ends the sleep early.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, within.as_ref()) else {
            return;
        };
        for event in &*events {
            match event.data.u64() {
                CALL => drop(rustix::io::read(&self.call, &mut [0; 8])),
                number => news(number),
            }
        }
    }
}
