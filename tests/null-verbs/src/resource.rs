//! Protection domains, completion queues and queue pairs.

use std::ffi::{c_int, c_void};
use std::ptr;

use invar_core::nic::QpCap;
use invar_testkit::null::Fabric;
use invar_verbs::sys::*;

use crate::{delay, fabric};

/// An object to which a caller gets a pointer: the header's public part, and the object's index in the
/// fabric.
#[repr(C)]
pub(crate) struct Object<T> {
    base: T,
    index: usize,
}

impl<T> Object<T> {
    pub(crate) fn give(base: T, index: usize) -> *mut T {
        Box::into_raw(Box::new(Object { base, index })).cast()
    }
}

/// The index of an object in the fabric.
pub(crate) fn index<T>(object: *mut T) -> usize {
    // SAFETY: `Object::give` made the object, and it is not destroyed.
    unsafe { (*object.cast::<Object<T>>()).index }
}

/// Frees an object that the caller destroys. Returns its index in the fabric.
pub(crate) fn end<T>(object: *mut T) -> usize {
    // SAFETY: `Object::give` made the object, and it is destroyed once.
    unsafe { Box::from_raw(object.cast::<Object<T>>()) }.index
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    Object::give(ibv_pd { context }, fabric().alloc_pd())
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    end(pd);
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut c_void,
    _: c_int,
) -> *mut ibv_cq {
    let Ok(depth @ 1..) = usize::try_from(cqe) else { return refused(libc::EINVAL) };
    Object::give(ibv_cq { context, channel, cq_context }, fabric().create_cq(depth))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    fabric().destroy_cq(end(cq));
    0
}

/// Creates a reliable connection (RC). Both of its queues must complete to one completion queue.
#[unsafe(no_mangle)]
extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller gives valid attributes.
    let init = unsafe { &*init };
    let ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, .. } = *init;
    if init.qp_type != IBV_QPT_RC || init.sq_sig_all != 0 || send_cq != recv_cq || !srq.is_null() {
        return refused(libc::EOPNOTSUPP);
    }
    let ibv_qp_cap { max_send_wr, max_recv_wr, max_inline_data, .. } = init.cap;
    let cap = QpCap { max_send_wr, max_recv_wr, max_inline_data };
    let index = fabric().create_qp(index(pd), index(send_cq), cap);
    // SAFETY: the caller gives a valid protection domain.
    let context = unsafe { (*pd).context };
    let qp_num = Fabric::qpn(index);
    let qp = ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle: 0, qp_num };
    Object::give(qp, index)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    let index = end(qp);
    delay::forget(index);
    fabric().destroy_qp(index);
    0
}

/// Sets `errno` and returns null for an object that is not created.
pub(crate) fn refused<T>(errno: c_int) -> *mut T {
    // SAFETY: the address is that of this thread's own `errno`.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}
