//! A device on its sockets, and the callers that drive it.
//!
//! The device has no hardware that works by itself. Two callers drive it, under one lock:
//!
//! - The application drives the device. A post sends immediately. A poll receives, runs timers and
//!   sends. If a poll returns completions, it sends nothing; the next call does. The application usually
//!   answers completions with a more urgent message, and the acknowledge can then leave together with
//!   that message. For the same reason, the acknowledge of a short message waits [`ACK_WAIT_NS`] for
//!   another packet. The acknowledge of WRITEs that notify nobody is held back even then, for
//!   [`ACK_DEFER_NS`].
//! - A thread drives the device once the application has not polled for some time ([`StandBy`]). Peers
//!   may read and write our memory or wait for an acknowledge while the application computes. The
//!   thread sleeps until a packet arrives or a timer is due.
//!
//! A thread that waits for the event of a completion queue does not poll. So the NIC's thread drives the
//! device as long as an event is awaited.
//!
//! While the application polls, the thread only checks at intervals whether the application still polls.
//! If the thread also waited for packets, each packet would wake it, only to find that the application
//! has taken the packet.

mod stand_by;

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use invar_core::nic::{PollError, Wc};
use rustix::thread::set_current_timer_slack;

use super::device::{AckDelay, AsyncEvent, Device, Subject};
use super::sockets::Sockets;
use crate::clock::now_ns;
use crate::udp::{RxBatch, RxSocket};
use stand_by::StandBy;

/// The longest wait for another call, in a process that is about to exit.
const FLUSH_WITHIN_NS: u64 = 1_000_000;
/// Delay after which the device retries to send packets that the sockets had no room for.
const BLOCKED_NS: u64 = 100_000;
/// Maximum number of trains that one system call receives; with more, the first would leave the cache
/// before their payload is copied.
const BATCH_TRAINS: usize = 8;

/// Time that the acknowledge of a short message waits for another packet, which saves a system call. The
/// value is about the time that an application takes between two short messages. If the application
/// sends meanwhile, the wait starts anew, because more sends are likely.
const ACK_WAIT_NS: u64 = 20_000;
/// Maximum time that an acknowledge waits, because a peer may wait for this acknowledge alone.
const ACK_WAIT_MAX_NS: u64 = 100_000;

/// Time for which the acknowledge of WRITEs that notify nobody, such as the protocol's own, is held back
/// even if other messages leave. This applies only while messages are sent often. A message that leaves
/// alone is half a microsecond faster than one followed by an acknowledge.
const ACK_DEFER_NS: u64 = ACK_WAIT_MAX_NS / 2;

/// What to call when an object has an asynchronous event.
pub(super) type Listener = Box<dyn Fn(AsyncEvent) + Send>;

pub(super) struct Port {
    rx: RxSockets,
    moving: Mutex<Moving>,
    /// Time of the application's last poll.
    last_poll_ns: AtomicU64,
    /// Time until which the thread sleeps if no packet arrives; 0 while the thread is awake or about to
    /// wake. Written under the lock.
    wakes_ns: AtomicU64,
    stop: AtomicBool,
    /// An application waits for an event of a completion queue. Written under the lock.
    pub(super) awaited: AtomicBool,
}

/// The sockets that receive, one for each address of the device.
pub(super) struct RxSockets {
    pub(super) first: RxSocket,
    pub(super) more: Vec<RxSocket>,
}

/// The state that only one thread may access at a time.
pub(super) struct Moving {
    pub(super) device: Device,
    pub(super) sockets: Sockets,
    batch: RxBatch,
    /// What to call when a completion queue raises an event.
    pub(super) notify: HashMap<u32, Box<dyn Fn() + Send>>,
    /// What to call when an object has an asynchronous event.
    pub(super) listeners: HashMap<Subject, Listener>,
    /// Time of the application's last post that sends immediately.
    posted_ns: u64,
    /// Whether that post came soon after the previous one.
    posts_often: bool,
    /// Index of the address from which a poll received last.
    last_address: usize,
}

impl Port {
    pub(super) fn new(rx: RxSockets, sockets: Sockets, device: Device) -> Port {
        Port {
            rx,
            moving: Mutex::new(Moving {
                device,
                sockets,
                batch: RxBatch::new(BATCH_TRAINS),
                notify: HashMap::new(),
                listeners: HashMap::new(),
                posted_ns: 0,
                posts_often: false,
                last_address: 0,
            }),
            last_poll_ns: AtomicU64::new(0),
            wakes_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            awaited: AtomicBool::new(false),
        }
    }

    /// Locks the state, for calls that send nothing.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Moving> {
        // The device checks its input and stays consistent even if a holder of the lock panicked.
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends all that is due, also acknowledges that could wait for others.
    pub(super) fn flush(&self) {
        self.lock().flush();
    }

    /// Makes a call on the device and sends the resulting packets.
    #[inline]
    pub(super) fn post<R>(&self, call: impl FnOnce(&mut Device) -> R) -> R {
        let moving = &mut *self.lock();
        let result = call(&mut moving.device);
        let now = now_ns();
        moving.posts_often = now.saturating_sub(moving.posted_ns) < ACK_WAIT_NS;
        moving.posted_ns = now;
        moving.transmit(now);
        self.raise(moving);
        self.wake_in_time(moving, now);
        result
    }

    /// Makes a call on the device without sending; the next call or the thread sends.
    #[inline]
    pub(super) fn post_ahead<R>(&self, call: impl FnOnce(&mut Device) -> R) -> R {
        let moving = &mut *self.lock();
        let result = call(&mut moving.device);
        self.raise(moving);
        self.wake_in_time(moving, now_ns());
        result
    }

    /// Takes completions; drives the device if there are none.
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
            self.raise(moving);
            return Ok(n);
        }
        moving
            .receive_next(&self.rx, now)
            .map_err(|error| PollError { errno: error.raw_os_error().unwrap_or(0) as u16 })?;
        let n = moving.device.poll(cq, wcs)?;
        if n == 0 {
            moving.transmit(now);
        }
        self.raise(moving);
        self.wake_in_time(moving, now);
        Ok(n)
    }

    /// Sends all that is due, acknowledges too, unless somebody holds the lock for long.
    pub(super) fn try_flush(&self) {
        let end = now_ns() + FLUSH_WITHIN_NS;
        loop {
            if let Ok(mut moving) = self.moving.try_lock() {
                return moving.flush();
            }
            if now_ns() > end {
                return;
            }
            thread::yield_now();
        }
    }

    /// Drives the device like a poll that finds no completion.
    #[inline]
    pub(super) fn progress(&self) -> io::Result<()> {
        let moving = &mut *self.lock();
        let now = now_ns();
        self.last_poll_ns.store(now, Ordering::Relaxed);
        let received = moving.receive_next(&self.rx, now);
        moving.transmit(now);
        self.raise(moving);
        self.wake_in_time(moving, now);
        received.map(|_| ())
    }

    /// Tells the application of events of completion queues, and of asynchronous events.
    #[inline]
    pub(super) fn raise(&self, moving: &mut Moving) {
        if !moving.device.has_events() {
            return;
        }
        for cq in moving.device.take_events() {
            if let Some(notify) = moving.notify.get(&cq) {
                notify();
            }
        }
        for (subject, event) in moving.device.take_notices() {
            if let Some(listener) = moving.listeners.get(&subject) {
                listener(event);
            }
        }
        self.awaited.store(moving.device.is_awaited(), Ordering::Relaxed);
    }

    /// Wakes the thread if it would sleep past a new deadline.
    #[inline]
    fn wake_in_time(&self, moving: &Moving, now: u64) {
        let wakes = self.wakes_ns.load(Ordering::Relaxed);
        if wakes > 0 && moving.due_ns(now) < wakes {
            self.wakes_ns.store(0, Ordering::Relaxed);
            self.rx.first.wake();
        }
    }

    /// Runs the thread until [`Port::stop`].
    pub(super) fn serve(&self, spins_on_memory: bool) {
        // Linux lets sleeps of a thread end 50 microseconds late unless the thread asks for less.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let mut stand_by = StandBy::new(spins_on_memory);
        let mut preempts = false;
        while !self.stop.load(Ordering::Acquire) {
            let now = now_ns();
            let quiet = now.saturating_sub(self.last_poll_ns.load(Ordering::Relaxed));
            if !self.awaited.load(Ordering::Relaxed)
                && let Some(wait) = stand_by.wait(quiet)
            {
                thread::park_timeout(wait);
                let slept = Duration::from_nanos(now_ns().saturating_sub(now));
                stand_by.overslept(slept.saturating_sub(wait));
                continue;
            }
            if preempts != stand_by.is_starved() {
                preempts = stand_by.is_starved();
                // Without the right to it, peers of a program that spins wait longer.
                let _ = preempt_programs(preempts);
            }
            match self.serve_once(now) {
                Ok(found_work) => stand_by.took_over(quiet, found_work),
                // The application's next poll meets the error too. The pause keeps the thread from
                // retrying at full speed.
                Err(_) => thread::park_timeout(Duration::from_nanos(stand_by::LONG_NS)),
            }
        }
    }

    /// Drives the device, and sleeps until the next packet or deadline. Returns whether packets had
    /// arrived, or were left to send.
    fn serve_once(&self, now: u64) -> io::Result<bool> {
        let (found_work, due) = {
            let moving = &mut *self.lock();
            let owed = moving.device.owes();
            let received = moving.receive_all(&self.rx, now)?;
            moving.device.transmit(now, &mut moving.sockets);
            self.raise(moving);
            let due = moving.due_ns(now);
            self.wakes_ns.store(due, Ordering::Relaxed);
            (received > 0 || owed, due)
        };
        let left = (due != u64::MAX).then(|| Duration::from_nanos(due.saturating_sub(now_ns())));
        let waited = self.rx.first.wait_any(&self.rx.more, left);
        self.wakes_ns.store(0, Ordering::Relaxed);
        waited.map(|_| found_work)
    }

    /// Ends [`Port::serve`], which runs on `thread`.
    pub(super) fn stop(&self, thread: &thread::Thread) {
        self.stop.store(true, Ordering::Release);
        thread.unpark();
        self.rx.first.wake();
    }
}

/// Decides whether the calling thread, once woken, preempts threads that spin on memory. Otherwise Linux lets them
/// spin on for milliseconds if all processors are busy.
///
/// # Errors
/// The process may not use real-time priorities.
fn preempt_programs(preempts: bool) -> io::Result<()> {
    let (policy, sched_priority) =
        if preempts { (libc::SCHED_RR, 1) } else { (libc::SCHED_OTHER, 0) };
    let priority = libc::sched_param { sched_priority };
    // SAFETY: the call reads `priority`, which lives until it returns. 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Moving {
    /// Destroys a completion queue and forgets whom to call.
    pub(super) fn destroy_cq(&mut self, cq: u32) {
        self.device.destroy_cq(cq);
        self.notify.remove(&cq);
    }

    /// Receives packets that have arrived at one of the addresses in use, each in its turn, and runs due
    /// timers. Returns the number of trains.
    #[inline]
    fn receive_next(&mut self, rx: &RxSockets, now: u64) -> io::Result<usize> {
        let at = if rx.more.is_empty() { 0 } else { self.next_address(rx) };
        let received = self.receive_at(rx, at, now);
        self.device.handle_timers(now);
        received
    }

    /// Receives packets that have arrived at any address, and runs due timers. Returns the number of
    /// trains.
    fn receive_all(&mut self, rx: &RxSockets, now: u64) -> io::Result<usize> {
        let mut received = self.receive_at(rx, 0, now)?;
        for at in 1..=rx.more.len() {
            received += self.receive_at(rx, at, now)?;
        }
        self.device.handle_timers(now);
        Ok(received)
    }

    /// Returns the index of the address after the last one, among those in use.
    fn next_address(&mut self, rx: &RxSockets) -> usize {
        let used = self.device.used_addresses();
        let behind = self.last_address + 1..=rx.more.len();
        let mut places = behind.chain(0..=self.last_address);
        self.last_address = places.find(|at| used >> at & 1 == 1).unwrap_or(0);
        self.last_address
    }

    #[inline]
    fn receive_at(&mut self, rx: &RxSockets, at: usize, now: u64) -> io::Result<usize> {
        let Moving { device, sockets, batch, .. } = self;
        let socket = if at == 0 { &rx.first } else { &rx.more[at - 1] };
        let received = socket.recv_batch(batch);
        if let Ok(1..) = received {
            for datagram in batch.datagrams() {
                if let Some(capture) = &mut sockets.capture {
                    capture.received(&datagram);
                }
                device.handle_datagram_at(now, at, datagram.source, datagram.bytes);
            }
        }
        received
    }

    /// Sends all that is due, also acknowledges that could wait for others.
    fn flush(&mut self) {
        self.device.transmit(now_ns(), &mut self.sockets);
    }

    /// Sends all pending packets, except acknowledges that may still wait.
    #[inline]
    fn transmit(&mut self, now: u64) {
        let quiet = now.saturating_sub(self.posted_ns) >= ACK_WAIT_NS;
        let waits_ns = if quiet { ACK_WAIT_NS } else { ACK_WAIT_MAX_NS };
        let defer_ns = if self.posts_often { ACK_DEFER_NS } else { 0 };
        let delay = AckDelay {
            waits_since_ns: now.saturating_sub(waits_ns),
            deferred_since_ns: now.saturating_sub(defer_ns),
        };
        self.device.transmit_urgent(now, delay, &mut self.sockets);
    }

    /// Returns the time at which the device is due if no packet arrives; `u64::MAX` means never.
    #[inline]
    fn due_ns(&self, now: u64) -> u64 {
        if self.device.owes() {
            return now;
        }
        let deadline = self.device.next_deadline_ns().unwrap_or(u64::MAX);
        if self.device.is_blocked() { deadline.min(now + BLOCKED_NS) } else { deadline }
    }
}
