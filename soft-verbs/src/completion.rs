//! Completion queues.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::slice;
use std::sync::{Arc, OnceLock};

use invar_core::nic::{Nic, Wc};
use invar_linux::soft::{self, SoftNic};
use invar_verbs::sys::extended::ibv_cq_ex;
use invar_verbs::sys::provider::{ibv_comp_channel, ibv_cq};
use invar_verbs::sys::{self, ibv_context, ibv_wc};

use crate::channel::{Channel, HeldChannel};
use crate::device::Context;
use crate::errno;
use crate::object::{self, Kind, Object};
use crate::turn::Turn;
use crate::unacknowledged::{self, Unacknowledged};

versions! {
    "IBVERBS_1.1":
        ibv_ack_cq_events ibv_create_cq ibv_destroy_cq ibv_get_cq_event ibv_resize_cq;
}

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    /// Its functions are absent, unless the program asks for them.
    pub(crate) base: ibv_cq_ex,
    /// The completion that the program reads by these functions.
    pub(crate) current: Turn<Wc>,
    pub(crate) nic: SoftNic,
    /// Queue pairs share this.
    pub(crate) queue: Arc<soft::Cq>,
    channel: Option<HeldChannel>,
    unacknowledged: Unacknowledged,
}

// SAFETY: `base` is the first field, and begins with `Base`.
unsafe impl Object for Cq {
    type Base = ibv_cq;
    const KIND: Kind = Kind::Cq;
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    create(context, cqe, cq_context, channel, comp_vector).unwrap_or_else(errno::null)
}

pub(crate) fn create(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> Result<*mut ibv_cq, c_int> {
    let nic = object::get::<Context>(context)?.nic.clone();
    let depth = usize::try_from(cqe).map_err(|_| libc::EINVAL)?;
    if comp_vector != 0 {
        return Err(libc::EINVAL);
    }
    let events = (!channel.is_null()).then(|| object::get::<Channel>(channel)).transpose()?;
    let events = events.map(Channel::hold);
    // The address of the object, once the program can arm the queue.
    let address = Arc::new(OnceLock::new());
    let queue = match &events {
        None => nic.create_cq(depth),
        Some((events, _)) => {
            let (events, address) = (Arc::clone(events), Arc::clone(&address));
            nic.create_cq_notifying(depth, move || {
                if let Some(&cq) = address.get() {
                    events.push(cq);
                }
            })
        }
    };
    let queue = Arc::new(queue.map_err(errno::of)?);
    // SAFETY: the structure has pointers, absent functions, integers, a mutex and a condition variable. Zero
    // is valid for all of them.
    let mut base: ibv_cq_ex = unsafe { mem::zeroed() };
    (base.context, base.channel, base.cq_context, base.cqe) = (context, channel, cq_context, cqe);
    let cq = object::give(Cq {
        base,
        current: Turn::new(Wc::default()),
        nic,
        queue,
        channel: events,
        unacknowledged: Unacknowledged::new(),
    });
    let _ = address.set(cq.expose_provenance());
    Ok(cq)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let unused = |cq: &Cq| object::unused(&cq.queue);
    let taken = unacknowledged::take(cq, |cq: &Cq| &cq.unacknowledged, unused);
    errno::status(taken.map(|object| {
        let Cq { queue, channel, .. } = *object;
        drop(queue);
        if let Some((events, _)) = channel {
            events.retain(|raised| *raised != cq.addr());
        }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    errno::status(object::get::<Cq>(cq).and_then(|object| {
        let depth = usize::try_from(cqe).map_err(|_| libc::EINVAL)?;
        object.nic.resize_cq(&object.queue, depth).map_err(errno::of)?;
        // SAFETY: the queue lives. The program must not use it during this call.
        unsafe { (&raw mut (*cq).cqe).write(cqe) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let events = object::get::<Channel>(channel).map(|channel| Arc::clone(&channel.events));
    // A queue takes its events along when it is destroyed, and is destroyed only once the events that were
    // taken are acknowledged.
    let living = |addr| {
        let raised = ptr::with_exposed_provenance_mut::<ibv_cq>(addr);
        let take = |cq: &Cq| cq.unacknowledged.note().then_some((raised, cq.base.cq_context));
        object::with(raised, take).ok().flatten()
    };
    let next = events.and_then(|events| events.next(living));
    // SAFETY: the caller gives places for both results.
    errno::or_minus_one(next.map(|next| unsafe { (*cq, *cq_context) = next }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    if let Ok(cq) = object::get::<Cq>(cq) {
        cq.unacknowledged.acknowledge(count);
    }
}

pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut sys::ibv_cq,
    count: c_int,
    wcs: *mut ibv_wc,
) -> c_int {
    let Ok(count @ 1..) = usize::try_from(count) else { return 0 };
    // SAFETY: the caller gives a living completion queue.
    let cq = unsafe { object::trusted::<Cq>(cq.cast()) };
    // SAFETY: the caller gives room for `count` completions, which have integers alone.
    let wcs: &mut [Wc] = unsafe { slice::from_raw_parts_mut(wcs, count) };
    match cq.nic.poll(&cq.queue, wcs) {
        Ok(taken) => taken as c_int,
        Err(error) => errno::minus_one(error.errno.into()),
    }
}

pub(crate) unsafe extern "C" fn req_notify_cq(
    cq: *mut sys::ibv_cq,
    solicited_only: c_int,
) -> c_int {
    // SAFETY: the caller gives a living completion queue.
    let cq = unsafe { object::trusted::<Cq>(cq.cast()) };
    // Without a channel nobody can take the event.
    if cq.channel.is_some() {
        cq.nic.arm_cq(&cq.queue, solicited_only != 0);
    }
    0
}
