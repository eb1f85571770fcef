//! Asynchronous events of a device (`ibv_get_async_event`). One thread per open device waits for them.
//!
//! An event on a queue pair or completion queue is recorded with that object. A fatal event is recorded
//! with the device. A caller that waits on a connection checks these records (`Nic::check`). After an event on
//! the port, connections look whether their queue pairs still have a port (`Nic::port_changes`), and reports
//! of a failed connection mention the event (`Nic::notices`). The thread logs
//! every event.

use std::ffi::{CStr, c_int};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use invar_core::nic::PortNotices;
use invar_linux::own_thread::OwnThread;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::device::Opened;
use crate::library::Library;
use crate::sys::*;

/// The event that ended an object, if any.
#[derive(Debug, Default)]
pub(crate) struct Fate(AtomicU32);

impl Fate {
    /// Records an event; the first event stays.
    fn meet(&self, event_type: u32) {
        let _ = self.0.compare_exchange(0, event_type + 1, Ordering::Release, Ordering::Relaxed);
    }

    /// Returns the recorded event.
    pub(crate) fn event(&self) -> Option<u32> {
        self.0.load(Ordering::Acquire).checked_sub(1)
    }
}

/// The events of an open device.
#[derive(Debug)]
pub(crate) struct News {
    /// The event that ended the device.
    pub(crate) fate: Fate,
    port_num: u8,
    port: Mutex<PortTimes>,
    /// The number of events after which the port may be of no more use.
    changes: AtomicU32,
}

/// The times of the port's last events.
#[derive(Clone, Copy, Debug, Default)]
struct PortTimes {
    went_down: Option<Instant>,
    came_up: Option<Instant>,
    changed_gids: Option<Instant>,
}

impl News {
    /// Makes an empty record for a device that is opened for one of its ports.
    pub(crate) fn new(port_num: u8) -> Self {
        News { fate: Fate::default(), port_num, port: Mutex::default(), changes: AtomicU32::new(0) }
    }

    /// Returns the number of events after which the port may be of no more use.
    pub(crate) fn port_changes(&self) -> u32 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns the recent events of the port.
    pub(crate) fn notices(&self) -> PortNotices {
        let PortTimes { went_down, came_up, changed_gids } =
            *self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let ago =
            |at: Option<Instant>| Some(at?.elapsed()).filter(|ago| *ago < PortNotices::WITHIN);
        PortNotices {
            went_down: ago(went_down),
            came_up: ago(came_up),
            changed_gids: ago(changed_gids),
            could_not_send: None,
        }
    }

    fn note_port(&self, port_num: c_int, event_type: u32) {
        if port_num != c_int::from(self.port_num) {
            return;
        }
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let time = match event_type {
            IBV_EVENT_PORT_ERR => &mut port.went_down,
            IBV_EVENT_PORT_ACTIVE => &mut port.came_up,
            IBV_EVENT_GID_CHANGE => &mut port.changed_gids,
            _ => return,
        };
        *time = Some(Instant::now());
        if event_type != IBV_EVENT_PORT_ACTIVE {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that watches a device; dropping this value ends the thread.
pub(crate) struct Watcher {
    stop: Arc<OwnedFd>,
    thread: OwnThread,
}

impl Watcher {
    /// Watches a device until the result is dropped, and keeps the device open meanwhile. Returns `None`
    /// if libibverbs reports no events.
    pub(crate) fn start(opened: Arc<Opened>, news: Arc<News>) -> io::Result<Option<Watcher>> {
        let library = opened.library();
        let (Some(get), Some(ack)) = (library.get_async_event, library.ack_async_event) else {
            log::debug!("{}: libibverbs tells of no events", opened.name());
            return Ok(None);
        };
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let name = format!("async {}", opened.name());
        let watch = Watch { opened, news, stop: Arc::clone(&stop), get, ack };
        watch.make_nonblocking()?;
        let thread = OwnThread::start(&name, move || watch.run())?;
        Ok(Some(Watcher { stop, thread }))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A child of fork shares the eventfd with its parent, whose thread goes on.
        if self.thread.is_here() {
            // A write of 8 bytes to an eventfd without other writers does not fail.
            let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        }
    }
}

struct Watch {
    opened: Arc<Opened>,
    news: Arc<News>,
    stop: Arc<OwnedFd>,
    get: GetAsyncEvent,
    ack: AckAsyncEvent,
}

impl Watch {
    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: The context and its descriptor stay open as long as `self.opened`.
        unsafe { BorrowedFd::borrow_raw((*self.opened.raw()).async_fd) }
    }

    fn make_nonblocking(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(self.fd())?;
        Ok(rustix::fs::fcntl_setfl(self.fd(), flags | rustix::fs::OFlags::NONBLOCK)?)
    }

    fn run(&self) {
        loop {
            let fds = [self.fd(), self.stop.as_fd()];
            let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    log::error!("{}: its events cannot be watched: {error}", self.opened.name());
                    return;
                }
            }
            let [events, stop] = fds.map(|fd| fd.revents());
            if !stop.is_empty() {
                return;
            }
            if events.contains(PollFlags::IN) {
                self.take();
            } else if !events.is_empty() {
                // An unplugged device hangs up its descriptor.
                self.news.fate.meet(IBV_EVENT_DEVICE_FATAL);
                log::error!("{}: the device is gone", self.opened.name());
                return;
            }
        }
    }

    fn take(&self) {
        let mut event =
            ibv_async_event { element: ibv_async_element { port_num: 0 }, event_type: 0 };
        // SAFETY: The context is open, and `event` has room for an event.
        if unsafe { (self.get)(self.opened.raw(), &mut event) } != 0 {
            return;
        }
        self.book(&event);
        // SAFETY: The call above has just returned the event, which is acknowledged once.
        unsafe { (self.ack)(&mut event) };
    }

    fn book(&self, event: &ibv_async_event) {
        let name = self.opened.name();
        let text = text(self.opened.library(), event.event_type);
        match event.event_type {
            IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                // SAFETY: The event names its queue pair, which is not destroyed before the event is
                // acknowledged. The pair's context is a `Fate` that outlives the pair.
                let (fate, qpn) = unsafe {
                    let qp = event.element.qp;
                    (&*(*qp).qp_context.cast::<Fate>(), (*qp).qp_num)
                };
                fate.meet(event.event_type);
                log::error!("{name}: {text}, QP {qpn:#x}");
            }
            IBV_EVENT_CQ_ERR => {
                // SAFETY: The event names its completion queue, which is not destroyed before the event
                // is acknowledged. The queue's context is a `Fate` that outlives the queue.
                let fate = unsafe { &*(*event.element.cq).cq_context.cast::<Fate>() };
                fate.meet(event.event_type);
                log::error!("{name}: {text}");
            }
            IBV_EVENT_DEVICE_FATAL => {
                self.news.fate.meet(event.event_type);
                log::error!("{name}: {text}: the device is of no more use");
            }
            IBV_EVENT_COMM_EST | IBV_EVENT_SQ_DRAINED | IBV_EVENT_QP_LAST_WQE_REACHED => {
                log::debug!("{name}: {text}");
            }
            IBV_EVENT_PORT_ACTIVE..=IBV_EVENT_SM_CHANGE
            | IBV_EVENT_CLIENT_REREGISTER
            | IBV_EVENT_GID_CHANGE => {
                // SAFETY: All these events name a port.
                let port_num = unsafe { event.element.port_num };
                self.news.note_port(port_num, event.event_type);
                match event.event_type {
                    IBV_EVENT_PORT_ERR => log::warn!(
                        "{name}: {text}, port {port_num}: connections wait for the link, if \
                         they recover (INVAR_RECOVERY_TIMEOUT_MS)"
                    ),
                    IBV_EVENT_GID_CHANGE => log::warn!("{name}: {text}, port {port_num}"),
                    _ => log::info!("{name}: {text}, port {port_num}"),
                }
            }
            other => log::warn!("{name}: {text} (event {other})"),
        }
    }
}

/// Returns libibverbs' text for an event.
pub(crate) fn text(library: &Library, event_type: u32) -> &'static str {
    // SAFETY: The function takes any number and returns a constant string or null.
    let text = library.event_type_str.map(|event_type_str| unsafe { event_type_str(event_type) });
    let Some(text) = text.filter(|text| !text.is_null()) else { return own_text(event_type) };
    // SAFETY: The text is a constant string that ends in NUL.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("event")
}

/// Returns our own text for an event, for a library that has none.
fn own_text(event_type: u32) -> &'static str {
    match event_type {
        IBV_EVENT_CQ_ERR => "CQ error",
        IBV_EVENT_QP_FATAL => "local work queue catastrophic error",
        IBV_EVENT_QP_REQ_ERR => "invalid request local work queue error",
        IBV_EVENT_QP_ACCESS_ERR => "local access violation work queue error",
        IBV_EVENT_DEVICE_FATAL => "local catastrophic error",
        IBV_EVENT_PORT_ACTIVE => "port active",
        IBV_EVENT_PORT_ERR => "port error",
        IBV_EVENT_GID_CHANGE => "GID table change",
        _ => "event",
    }
}
