//! Looks for the way to a peer, without waiting.
//!
//! Over Ethernet the kernel needs the peer's MAC address before it starts a queue pair, and waits a second for it. It
//! waits as long for an address handle, which needs nothing of the peer. So a thread of its own makes one.

use std::mem;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use invar_core::nic::{Gid, LinkLayer, Nic, Resolution};

use super::VerbsNic;
use super::handles::Pd;
use crate::sys::ibv_ah_attr;

/// An older answer is of no use: the peer's link may have been down since.
const FRESH: Duration = Duration::from_secs(1);
/// A router's hops, at most.
const HOP_LIMIT: u8 = 255;

/// The searches of a port, by the peer's GID.
#[derive(Default)]
pub(super) struct Resolver(Mutex<Vec<(Gid, JoinHandle<Found>)>>);

/// The answer of a search, with the time and with the port's number of changes then.
struct Found {
    answer: Resolution,
    at: Instant,
    changes: u32,
}

impl Resolver {
    /// The answer of [`Nic::resolve`].
    pub(super) fn resolve(&self, nic: &VerbsNic, gid: &Gid) -> Resolution {
        let mut searches = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = searches.iter().position(|(of, _)| of == gid) {
            if !searches[at].1.is_finished() {
                return Resolution::Pending;
            }
            let Ok(found) = searches.swap_remove(at).1.join() else { return Resolution::Failed };
            if found.changes == nic.port_changes() && found.at.elapsed() < FRESH {
                return found.answer;
            }
        }
        let (nic, gid) = (nic.clone(), *gid);
        let search = move || {
            let changes = nic.port_changes();
            Found { answer: nic.look_for(&gid), at: Instant::now(), changes }
        };
        match thread::Builder::new().name("invar-resolve".into()).spawn(search) {
            Ok(search) => searches.push((gid, search)),
            // Without a thread the start of the queue pair waits.
            Err(_) => return Resolution::Done,
        }
        Resolution::Pending
    }
}

impl VerbsNic {
    /// Looks for the way to a peer. This may take a second.
    fn look_for(&self, gid: &Gid) -> Resolution {
        let context = &self.0.context;
        let library = context.library();
        let Some((create_ah, destroy_ah)) = library.create_ah.zip(library.destroy_ah) else {
            return Resolution::Done;
        };
        let Ok(port) = self.query_port() else { return Resolution::Failed };
        if port.link_layer != LinkLayer::Ethernet {
            return Resolution::Done;
        }
        let Ok(pd) = Pd::alloc(context) else { return Resolution::Failed };
        // SAFETY: The type consists of integers, for which all zeros is a valid value.
        let mut attr: ibv_ah_attr = unsafe { mem::zeroed() };
        (attr.is_global, attr.port_num) = (1, port.port_num);
        (attr.grh.dgid.raw, attr.grh.sgid_index) = (gid.0, port.gid_index);
        attr.grh.hop_limit = HOP_LIMIT;
        // SAFETY: The domain is allocated, and the attributes are set.
        let ah = unsafe { create_ah(pd.raw(), &mut attr) };
        if ah.is_null() {
            return Resolution::Failed;
        }
        // SAFETY: The handle was just made, and is released once, before its domain.
        unsafe { destroy_ah(ah) };
        Resolution::Done
    }
}
