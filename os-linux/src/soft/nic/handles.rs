//! The objects of the verbs. Each keeps its NIC, and dropping it ends the object in the NIC.

use std::sync::Arc;

use invar_core::nic::{MemoryKeys, QpState};

use super::SoftNic;
use crate::clock::now_ns;

/// A protection domain; clones are the same one.
#[derive(Clone)]
pub struct Pd(pub(super) Arc<OwnedPd>);

/// Ends with its last clone.
pub(super) struct OwnedPd {
    pub(super) nic: SoftNic,
    pub(super) number: u32,
}

impl Drop for OwnedPd {
    fn drop(&mut self) {
        self.nic.port().lock().device.dealloc_pd(self.number);
    }
}

/// A registered region: exactly its bytes, and not the rest of its pages.
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
        // Without the lock: its owner may do as it likes when it goes.
        drop(memory);
    }
}

/// A completion queue.
pub struct Cq {
    pub(super) nic: SoftNic,
    pub(super) number: u32,
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.nic.port().lock().device.destroy_cq(self.number);
    }
}

/// A queue pair.
pub struct Qp {
    pub(super) nic: SoftNic,
    pub(super) qpn: u32,
}

impl Qp {
    /// The state that it is in.
    pub fn state(&self) -> QpState {
        let state = self.nic.port().lock().device.qp_state(self.qpn);
        state.expect("it is there as long as its handle")
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        self.nic.port().post(|device| device.destroy_qp(now_ns(), self.qpn));
    }
}
