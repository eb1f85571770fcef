//! Shared receive queues.

use std::ffi::c_int;
use std::mem;
use std::sync::{Arc, OnceLock};

use invar_core::nic::RecvWr;
use invar_linux::soft::device::AsyncEvent;
use invar_linux::soft::{self, SoftNic};
use invar_verbs::sys::ibv_recv_wr;
use invar_verbs::sys::provider::{IBV_SRQ_LIMIT, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use crate::device::Context;
use crate::errno;
use crate::events::{EventQueue, Raised};
use crate::memory::Pd;
use crate::object::{self, Kind, Object};
use crate::unacknowledged::{self, Unacknowledged};
use crate::work_requests::{buffers, name_refused};

versions! {
    "IBVERBS_1.1":
        ibv_create_srq ibv_destroy_srq ibv_modify_srq ibv_query_srq;
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct Srq {
    base: ibv_srq,
    nic: SoftNic,
    /// Queue pairs share this.
    pub(crate) queue: Arc<soft::Srq>,
    attr: ibv_srq_attr,
    events: Arc<EventQueue<Raised>>,
    pub(crate) unacknowledged: Unacknowledged,
    _domain: Arc<soft::Pd>,
}

// SAFETY: `base` is the first field.
unsafe impl Object for Srq {
    type Base = ibv_srq;
    const KIND: Kind = Kind::Srq;
}

/// Returns a function that puts the asynchronous events of an object into a context's queue, once the
/// object has an address.
pub(crate) fn listener(
    events: &Arc<EventQueue<Raised>>,
) -> (Arc<OnceLock<usize>>, impl Fn(AsyncEvent) + Send + 'static) {
    let address = Arc::new(OnceLock::new());
    let (events, known) = (Arc::clone(events), Arc::clone(&address));
    let listener = move |event: AsyncEvent| {
        if let Some(&element) = known.get() {
            events.push(Raised { event: event as u32, element });
        }
    };
    (address, listener)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the caller gives valid attributes.
    create(pd, unsafe { &mut *init }).unwrap_or_else(errno::null)
}

fn create(pd: *mut ibv_pd, init: &mut ibv_srq_init_attr) -> Result<*mut ibv_srq, c_int> {
    let domain = object::get::<Pd>(pd)?;
    // SAFETY: `get` found the domain.
    let context = unsafe { (*pd).context };
    let events = Arc::clone(&object::get::<Context>(context)?.events);
    init.attr.max_sge = init.attr.max_sge.max(1);
    let ibv_srq_attr { max_wr, max_sge, .. } = init.attr;
    let (address, listener) = listener(&events);
    let queue = domain.nic.create_srq(&domain.domain, max_wr, max_sge, listener);
    let queue = queue.map_err(errno::of)?;
    // SAFETY: the structure has pointers, integers, a mutex and a condition variable. Zero is valid for
    // all of them.
    let mut base: ibv_srq = unsafe { mem::zeroed() };
    (base.context, base.pd, base.srq_context) = (context, pd.cast(), init.srq_context);
    let srq = object::give(Srq {
        base,
        nic: domain.nic.clone(),
        queue: Arc::new(queue),
        attr: init.attr,
        events,
        unacknowledged: Unacknowledged::new(),
        _domain: Arc::clone(&domain.domain),
    });
    let _ = address.set(srq.expose_provenance());
    Ok(srq)
}

/// Arms the limit. The length cannot change.
#[unsafe(no_mangle)]
extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    errno::status(object::get::<Srq>(srq).and_then(|object| {
        if mask & !IBV_SRQ_LIMIT != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask == 0 {
            return Ok(());
        }
        // SAFETY: the caller gives valid attributes.
        let limit = unsafe { (*attr).srq_limit };
        object.nic.set_srq_limit(&object.queue, limit).map_err(errno::of)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    errno::status(object::get::<Srq>(srq).map(|object| {
        let srq_limit = object.nic.srq_limit(&object.queue);
        // SAFETY: the caller gives a place for the attributes.
        unsafe { attr.write(ibv_srq_attr { srq_limit, ..object.attr }) };
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    let unused = |srq: &Srq| object::unused(&srq.queue);
    let taken = unacknowledged::take(srq, |srq: &Srq| &srq.unacknowledged, unused);
    errno::status(taken.map(|object| {
        let Srq { queue, events, .. } = *object;
        drop(queue);
        events.retain(|raised| raised.element != srq.addr());
    }))
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a living queue.
    let srq = unsafe { object::trusted::<Srq>(srq) };
    let posted = srq.nic.post_srq_recvs(&srq.queue, |post_one| {
        while !wr.is_null() {
            // SAFETY: the caller gives a chain of valid requests.
            let request = unsafe { &*wr };
            let (list, count) = (request.sg_list, request.num_sge);
            // SAFETY: a valid request has `num_sge` buffers.
            let list = unsafe { buffers(list, count, srq.attr.max_sge) }?;
            let received = RecvWr { wr_id: request.wr_id, ..RecvWr::default() };
            post_one(&received, list).map_err(errno::of)?;
            wr = request.next;
        }
        Ok(())
    });
    name_refused(posted, wr, bad_wr)
}
