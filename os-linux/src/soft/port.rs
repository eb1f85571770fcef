//! A device on its sockets, and who moves it.
//!
//! The device has no hardware that would work by itself. Two move it, under one lock:
//!
//! - the application: posting sends at once, and polling receives, runs timers and sends. What a
//!   poll with completions to hand out would send, the next call sends: most often the application
//!   answers them with something more urgent than an acknowledge, which then goes with it. For the
//!   same reason the acknowledge of a short message waits [`ACK_WAIT_NS`] for something to go with,
//!   and that of WRITEs of which nobody is told does not even go with that for [`ACK_STAY_NS`];
//! - a thread, once the application has not polled for [`STAND_BY_NS`]: peers may read and write
//!   our memory, or wait for an acknowledge, while the application computes. It sleeps until
//!   something arrives or a timer is due.
//!
//! While the application polls, the thread only looks once each [`STAND_BY_NS`] whether that is
//! still so: a thread that waited for packets too would be woken for each, just to find it taken.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use invar_core::nic::{PollError, Wc};

use super::device::{Device, Patience};
use super::sockets::Sockets;
use crate::clock::now_ns;
use crate::udp::{RxBatch, RxSocket};

/// How long after its last poll the application counts as one that polls. So long a peer may have to
/// wait for it to be seen that it does no longer; and so often the thread takes its core away.
const STAND_BY_NS: u64 = 4_000_000;
/// When to try again to send what the sockets had no room for.
const BLOCKED_NS: u64 = 100_000;
/// Trains taken by one system call; more would no longer be in the cache when they are placed.
const BATCH_TRAINS: usize = 8;

/// How long the acknowledge of a short message waits for something to go with, which saves a system
/// call: about as long as an application takes from one short message to the next. If it sends
/// something meanwhile, the wait begins anew, as there will be more.
const ACK_WAIT_NS: u64 = 20_000;
/// How long at most: a peer may wait for this acknowledge and nothing else.
const ACK_WAIT_MAX_NS: u64 = 100_000;

/// How long the acknowledge of WRITEs of which nobody is told, as the protocol's own are, leaves the
/// messages to themselves that are sent meanwhile, where they are sent often. A message that goes by
/// itself is half a microsecond faster than with an acknowledge behind it.
const ACK_STAY_NS: u64 = ACK_WAIT_MAX_NS / 2;

pub(super) struct Port {
    rx: RxSocket,
    moving: Mutex<Moving>,
    /// When the application last polled.
    last_poll_ns: AtomicU64,
    /// Until when the thread sleeps, if nothing arrives; 0 while it is awake or soon will be.
    /// Set under the lock.
    wakes_ns: AtomicU64,
    stop: AtomicBool,
}

/// The state that only one thread may have at a time.
pub(super) struct Moving {
    pub(super) device: Device,
    pub(super) sockets: Sockets,
    batch: RxBatch,
    /// When the application last posted something to send at once.
    posted_ns: u64,
    /// Whether that was soon after it had done so before.
    posts_often: bool,
}

impl Port {
    pub(super) fn new(rx: RxSocket, sockets: Sockets, device: Device) -> Port {
        Port {
            rx,
            moving: Mutex::new(Moving {
                device,
                sockets,
                batch: RxBatch::new(BATCH_TRAINS),
                posted_ns: 0,
                posts_often: false,
            }),
            last_poll_ns: AtomicU64::new(0),
            wakes_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// For calls that send nothing.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Moving> {
        // Whoever panicked, the device checks what it is given and stays consistent.
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that may have something to send, and sends it.
    #[inline]
    pub(super) fn post<R>(&self, call: impl FnOnce(&mut Device) -> R) -> R {
        let moving = &mut *self.lock();
        let result = call(&mut moving.device);
        let now = now_ns();
        moving.posts_often = now.saturating_sub(moving.posted_ns) < ACK_WAIT_NS;
        moving.posted_ns = now;
        moving.transmit(now);
        self.wake_in_time(moving, now);
        result
    }

    /// Makes a call after which nothing is to be sent at once: the next one sends it, or the thread.
    #[inline]
    pub(super) fn post_ahead<R>(&self, call: impl FnOnce(&mut Device) -> R) -> R {
        let moving = &mut *self.lock();
        let result = call(&mut moving.device);
        self.wake_in_time(moving, now_ns());
        result
    }

    /// Takes completions; moves the device where there are none.
    #[inline]
    pub(super) fn poll(&self, cq: u32, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let moving = &mut *self.lock();
        let now = now_ns();
        self.last_poll_ns.store(now, Ordering::Relaxed);
        if moving.device.owes() {
            moving.transmit(now);
        }
        let n = moving.device.poll(cq, wcs)?;
        if n > 0 {
            return Ok(n);
        }
        moving
            .receive(&self.rx, now)
            .map_err(|error| PollError { errno: error.raw_os_error().unwrap_or(0) as u16 })?;
        let n = moving.device.poll(cq, wcs)?;
        if n == 0 {
            moving.transmit(now);
        }
        self.wake_in_time(moving, now);
        Ok(n)
    }

    /// Does the work of a poll that finds no completion.
    #[inline]
    pub(super) fn progress(&self) -> io::Result<()> {
        let moving = &mut *self.lock();
        let now = now_ns();
        self.last_poll_ns.store(now, Ordering::Relaxed);
        let received = moving.receive(&self.rx, now);
        moving.transmit(now);
        self.wake_in_time(moving, now);
        received
    }

    /// Wakes the thread where it would sleep past a deadline that is new.
    #[inline]
    fn wake_in_time(&self, moving: &Moving, now: u64) {
        let wakes = self.wakes_ns.load(Ordering::Relaxed);
        if wakes > 0 && moving.due_ns(now) < wakes {
            self.wakes_ns.store(0, Ordering::Relaxed);
            self.rx.wake();
        }
    }

    /// The thread, until [`Port::stop`].
    pub(super) fn serve(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let now = now_ns();
            let quiet = now.saturating_sub(self.last_poll_ns.load(Ordering::Relaxed));
            if quiet < STAND_BY_NS {
                thread::park_timeout(Duration::from_nanos(STAND_BY_NS - quiet));
            } else if self.serve_once(now).is_err() {
                // The next poll of the application meets the error too. Not to be tried at full
                // speed.
                thread::park_timeout(Duration::from_nanos(STAND_BY_NS));
            }
        }
    }

    /// Moves the device, and sleeps until it has to be moved again.
    fn serve_once(&self, now: u64) -> io::Result<()> {
        let due = {
            let moving = &mut *self.lock();
            moving.receive(&self.rx, now)?;
            moving.device.transmit(now, &mut moving.sockets);
            let due = moving.due_ns(now);
            self.wakes_ns.store(due, Ordering::Relaxed);
            due
        };
        let left = (due != u64::MAX).then(|| Duration::from_nanos(due.saturating_sub(now_ns())));
        let waited = self.rx.wait_readable(left);
        self.wakes_ns.store(0, Ordering::Relaxed);
        waited.map(|_| ())
    }

    /// Ends [`Port::serve`], which runs on `thread`.
    pub(super) fn stop(&self, thread: &thread::Thread) {
        self.stop.store(true, Ordering::Release);
        thread.unpark();
        self.rx.wake();
    }
}

impl Moving {
    /// Receives what has arrived, and runs what is due.
    #[inline]
    fn receive(&mut self, rx: &RxSocket, now: u64) -> io::Result<()> {
        let Moving { device, sockets, batch, .. } = self;
        let received = rx.recv_batch(batch);
        if let Ok(1..) = received {
            for datagram in batch.datagrams() {
                if let Some(capture) = &mut sockets.capture {
                    capture.received(&datagram);
                }
                device.handle_datagram(now, datagram.source, datagram.bytes);
            }
        }
        device.handle_timers(now);
        received.map(|_| ())
    }

    /// Sends what there is to send, but for acknowledges that still may wait.
    #[inline]
    fn transmit(&mut self, now: u64) {
        let quiet = now.saturating_sub(self.posted_ns) >= ACK_WAIT_NS;
        let waits_ns = if quiet { ACK_WAIT_NS } else { ACK_WAIT_MAX_NS };
        let stays_ns = if self.posts_often { ACK_STAY_NS } else { 0 };
        let patience = Patience {
            waits_since_ns: now.saturating_sub(waits_ns),
            stays_since_ns: now.saturating_sub(stays_ns),
        };
        self.device.transmit_urgent(now, patience, &mut self.sockets);
    }

    /// When the device is next to be moved, if nothing arrives; `u64::MAX` for never.
    #[inline]
    fn due_ns(&self, now: u64) -> u64 {
        if self.device.owes() {
            return now;
        }
        let deadline = self.device.next_deadline_ns().unwrap_or(u64::MAX);
        if self.device.is_blocked() { deadline.min(now + BLOCKED_NS) } else { deadline }
    }
}
