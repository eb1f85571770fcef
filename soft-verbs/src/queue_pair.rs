//! Queue pairs: creation, attributes and destruction.

use std::ffi::c_int;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use invar_core::nic::{QpCap, QpState, QpType};
use invar_linux::soft::{self, QpInit, SoftNic};
use invar_verbs::sys::extended::ibv_qp_ex;
use invar_verbs::sys::provider::{IBV_QP_RATE_LIMIT, ibv_pd, ibv_qp};
use invar_verbs::sys::{
    IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr,
};

use crate::batch::Batch;
use crate::completion::Cq;
use crate::device::Context;
use crate::events::{EventQueue, Raised};
use crate::memory::Pd;
use crate::object::{self, Kind, Object};
use crate::shared_receive::{Srq, listener};
use crate::turn::Turn;
use crate::unacknowledged::{self, Unacknowledged};
use crate::{attributes, errno};

versions! {
    "IBVERBS_1.1":
        ibv_create_qp ibv_destroy_qp ibv_query_qp;
}

/// A queue pair.
#[repr(C)]
pub(crate) struct Qp {
    /// Its functions are absent, unless the program asks for them.
    pub(crate) extended: ibv_qp_ex,
    /// The sends that the program builds by these functions.
    pub(crate) batch: Turn<Batch>,
    pub(crate) nic: SoftNic,
    pub(crate) pair: soft::Qp,
    /// Each send asks for a completion.
    pub(crate) signals_all: bool,
    pub(crate) cap: ibv_qp_cap,
    /// The attributes as the program set them.
    pub(crate) attr: Mutex<ibv_qp_attr>,
    _domain: Arc<soft::Pd>,
    _queues: [Arc<soft::Cq>; 2],
    _shared: Option<Arc<soft::Srq>>,
    events: Arc<EventQueue<Raised>>,
    /// Asynchronous events.
    pub(crate) unacknowledged: Unacknowledged,
}

// SAFETY: `extended` is the first field, and begins with `Base`.
unsafe impl Object for Qp {
    type Base = ibv_qp;
    const KIND: Kind = Kind::Qp;
}

impl Qp {
    pub(crate) fn base(&self) -> &ibv_qp {
        &self.extended.qp_base
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller gives valid attributes.
    create(pd, unsafe { &mut *init }).unwrap_or_else(errno::null)
}

pub(crate) fn create(pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<*mut ibv_qp, c_int> {
    let domain = object::get::<Pd>(pd)?;
    let ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, .. } = *init;
    let types = [QpType::Rc, QpType::Uc, QpType::Ud];
    let qp_type = types.into_iter().find(|known| *known as u32 == init.qp_type);
    let qp_type = qp_type.ok_or(libc::EOPNOTSUPP)?;
    let queues = [send_cq, recv_cq].map(|cq| object::get::<Cq>(cq.cast()));
    let [send, recv] = [queues[0]?, queues[1]?];
    let shared = (!srq.is_null()).then(|| object::get::<Srq>(srq.cast())).transpose()?;
    let shared = shared.map(|srq| Arc::clone(&srq.queue));
    // SAFETY: `get` found the domain.
    let context = unsafe { (*pd).context };
    let events = Arc::clone(&object::get::<Context>(context)?.events);
    if shared.is_some() {
        init.cap.max_recv_wr = 0;
    }
    // A queue pair without buffers would be of no use.
    init.cap.max_send_sge = init.cap.max_send_sge.max(1);
    init.cap.max_recv_sge = init.cap.max_recv_sge.max(1);
    let cap = init.cap;
    let ibv_qp_cap { max_send_wr, max_recv_wr, max_inline_data, .. } = cap;
    let kind = QpInit {
        qp_type,
        cap: QpCap { max_send_wr, max_recv_wr, max_inline_data },
        send_sges_max: cap.max_send_sge,
        recv_sges_max: cap.max_recv_sge,
    };
    let (nic, cqs) = (domain.nic.clone(), (&*send.queue, &*recv.queue));
    let (address, listener) = listener(&events);
    let pair = nic
        .create_qp_with(&domain.domain, cqs, shared.as_deref(), &kind, listener)
        .map_err(errno::of)?;
    // SAFETY: the structures have pointers, absent functions, integers, a mutex and a condition variable.
    // Zero is valid for all of them.
    let (mut extended, mut attr): (ibv_qp_ex, ibv_qp_attr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let base = &mut extended.qp_base;
    (base.context, base.qp_context, base.pd) = (context, qp_context, pd.cast());
    base.srq = srq;
    (base.send_cq, base.recv_cq) = (send_cq, recv_cq);
    (base.qp_num, base.qp_type) = (invar_core::nic::Nic::qp_num(&nic, &pair), init.qp_type);
    attr.cap = cap;
    let qp = object::give(Qp {
        extended,
        batch: Turn::new(Batch::default()),
        nic,
        pair,
        signals_all: init.sq_sig_all != 0,
        cap,
        attr: Mutex::new(attr),
        _domain: Arc::clone(&domain.domain),
        _queues: [Arc::clone(&send.queue), Arc::clone(&recv.queue)],
        _shared: shared,
        events,
        unacknowledged: Unacknowledged::new(),
    });
    let _ = address.set(qp.expose_provenance());
    Ok(qp)
}

/// The verbs' code of a state.
pub(crate) fn state_code(state: QpState) -> u32 {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Sqd => IBV_QPS_SQD,
        QpState::Err => IBV_QPS_ERR,
    }
}

/// Length of `ibv_qp_attr` in rdma-core before version 13.
const OLD_ATTR_BYTES: usize = mem::offset_of!(ibv_qp_attr, rate_limit);

/// Writes all attributes that programs of every version have, whatever the mask asks for. Programs for rdma-core
/// before version 13 have no room for `rate_limit`, so the function writes it only if the mask has it.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    errno::status(object::get::<Qp>(qp).map(|object| {
        let mut known = *object.attr.lock().unwrap_or_else(PoisonError::into_inner);
        known.qp_state = state_code(object.pair.state());
        known.cur_qp_state = known.qp_state;
        let is_draining = known.qp_state == IBV_QPS_SQD && !object.pair.is_drained();
        known.sq_draining = is_draining.into();
        let ibv_qp { qp_context, send_cq, recv_cq, srq, qp_type, .. } = *object.base();
        let (cap, sq_sig_all) = (object.cap, object.signals_all.into());
        let made = ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all };
        let asks_for_rate = mask & IBV_QP_RATE_LIMIT != 0;
        let bytes = if asks_for_rate { size_of::<ibv_qp_attr>() } else { OLD_ATTR_BYTES };
        // SAFETY: the caller gives places for both, which have the rate limit if the mask has it. The state is a
        // field of a living queue pair.
        unsafe {
            attributes::write(attr, bytes, &known);
            init.write(made);
            (&raw mut (*qp).state).write(known.qp_state);
        }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let taken = unacknowledged::take(qp, |qp: &Qp| &qp.unacknowledged, |_| Ok(()));
    errno::status(taken.map(|object| {
        let Qp { pair, events, .. } = *object;
        drop(pair);
        events.retain(|raised| raised.element != qp.addr());
    }))
}
