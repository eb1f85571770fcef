//! Completion channels.

use std::ffi::c_int;
use std::sync::Arc;

use invar_verbs::sys::ibv_context;
use invar_verbs::sys::provider::ibv_comp_channel;

use crate::device::Context;
use crate::errno;
use crate::events::EventQueue;
use crate::object::{self, Kind, Object};

versions! {
    "IBVERBS_1.0":
        ibv_create_comp_channel ibv_destroy_comp_channel;
}

/// A completion channel.
#[repr(C)]
pub(crate) struct Channel {
    base: ibv_comp_channel,
    /// The completion queues that raised events, as addresses.
    pub(crate) events: Arc<EventQueue<usize>>,
    /// Each completion queue of the channel has a handle. Threads that wait for events do not.
    queues: Arc<()>,
}

/// The events of a channel, for a completion queue that keeps the channel from being destroyed.
pub(crate) type HeldChannel = (Arc<EventQueue<usize>>, Arc<()>);

impl Channel {
    pub(crate) fn hold(&self) -> HeldChannel {
        (Arc::clone(&self.events), Arc::clone(&self.queues))
    }
}

// SAFETY: `base` is the first field.
unsafe impl Object for Channel {
    type Base = ibv_comp_channel;
    const KIND: Kind = Kind::Channel;
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    if let Err(errno) = object::get::<Context>(context) {
        return errno::null(errno);
    }
    match EventQueue::new() {
        Ok(events) => {
            let base = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
            object::give(Channel { base, events: Arc::new(events), queues: Arc::default() })
        }
        Err(error) => errno::null(error.raw_os_error().unwrap_or(libc::EMFILE)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let taken = object::take(channel, |channel: &Channel| object::unused(&channel.queues));
    errno::status(taken.map(drop))
}
