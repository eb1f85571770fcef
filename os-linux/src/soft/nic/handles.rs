//! The objects of the verbs. Each handle keeps its NIC, and dropping the handle ends the object in the
//! NIC.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use invar_core::nic::{MemoryKeys, QpState};
use rustix::event::{EventfdFlags, eventfd};

use super::SoftNic;
use crate::clock::now_ns;
use crate::soft::device::{Awaited, Subject};

/// A protection domain; clones share the domain.
#[derive(Clone)]
pub struct Pd(pub(super) Arc<OwnedPd>);

/// A protection domain that ends with its last clone.
pub(super) struct OwnedPd {
    pub(super) nic: SoftNic,
    pub(super) number: u32,
}

impl Drop for OwnedPd {
    fn drop(&mut self) {
        self.nic.port().lock().device.dealloc_pd(self.number);
    }
}

/// A registered region. It covers exactly the registered bytes, not the rest of their pages.
pub struct Mr {
    pub(super) nic: SoftNic,
    pub(super) key: u32,
}

impl MemoryKeys for Mr {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let memory = self.nic.port().lock().device.dereg_mr(self.key);
        // The drop happens without the lock, because the memory's owner may run any code on drop.
        drop(memory);
    }
}

/// A memory window.
pub struct Window {
    pub(super) nic: SoftNic,
    pub(super) key: u32,
}

impl Window {
    /// Returns the key that the window had first. All its keys have the same upper 24 bits.
    pub fn first_key(&self) -> u32 {
        self.key
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.nic.port().lock().device.dealloc_window(self.key);
    }
}

/// A completion queue.
pub struct Cq {
    pub(super) nic: SoftNic,
    pub(super) number: u32,
    /// An event descriptor that is readable after an event of the queue, once somebody has waited for one.
    event: OnceLock<Arc<OwnedFd>>,
}

impl Cq {
    pub(super) fn new(nic: &SoftNic, number: u32) -> Self {
        Cq { nic: nic.clone(), number, event: OnceLock::new() }
    }

    /// Arms the queue and returns the descriptor that its event makes readable. Returns `None` if the process
    /// has no descriptor left.
    pub(super) fn arm(&self, awaited: Awaited) -> Option<BorrowedFd<'_>> {
        let event = match self.event.get() {
            Some(event) => event,
            None => {
                let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
                let event = self.event.get_or_init(|| Arc::new(event));
                let raised = Arc::clone(event);
                // The write fails only if the counter is full, and then the descriptor is readable.
                let notify = move || {
                    let _ = rustix::io::write(&raised, &1_u64.to_ne_bytes());
                };
                self.nic.port().lock().notify.insert(self.number, Box::new(notify));
                event
            }
        };
        // Earlier events count no more: the caller looks at the queue before it sleeps.
        let _ = rustix::io::read(event, &mut [0; 8]);
        self.nic.await_event(self, awaited);
        Some(event.as_fd())
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        let port = self.nic.port();
        let mut moving = port.lock();
        moving.destroy_cq(self.number);
        // Otherwise the thread goes on waking for a queue that was armed.
        port.awaited.store(moving.device.is_awaited(), Ordering::Relaxed);
    }
}

/// A shared receive queue.
pub struct Srq {
    pub(super) nic: SoftNic,
    pub(super) number: u32,
}

impl Drop for Srq {
    fn drop(&mut self) {
        let mut moving = self.nic.port().lock();
        moving.listeners.remove(&Subject::Srq(self.number));
        moving.device.destroy_srq(self.number);
    }
}

/// A queue pair.
pub struct Qp {
    pub(super) nic: SoftNic,
    pub(super) qpn: u32,
}

impl Qp {
    /// Returns the state of the queue pair.
    pub fn state(&self) -> QpState {
        let state = self.nic.port().lock().device.qp_state(self.qpn);
        state.expect("it is there as long as its handle")
    }

    /// Whether no send that has begun is left.
    pub fn is_drained(&self) -> bool {
        let is_drained = self.nic.port().lock().device.is_drained(self.qpn);
        is_drained.expect("it is there as long as its handle")
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.nic.port().lock().listeners.remove(&Subject::Qp(self.qpn));
        self.nic.port().post(|device| device.destroy_qp(now_ns(), self.qpn));
    }
}
