//! Completion queues that are read by functions: `ibv_create_cq_ex`, `ibv_start_poll` and what follows.

use std::ffi::c_int;
use std::slice;

use invar_core::nic::Nic;
use invar_verbs::sys::extended::*;
use invar_verbs::sys::{ibv_context, ibv_wc};

use crate::completion::{self, Cq};
use crate::errno;
use crate::object;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller gives valid attributes.
    let init = unsafe { &*init };
    let ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, .. } = init;
    let ibv_cq_init_attr_ex { wc_flags, comp_mask, flags, .. } = init;
    let has_flags = comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
    let unknown = comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
        || wc_flags & !IBV_WC_STANDARD_FLAGS != 0
        || has_flags && flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
    if unknown {
        return errno::null(libc::EOPNOTSUPP);
    }
    let depth = c_int::try_from(*cqe).map_err(|_| libc::EINVAL);
    let vector = c_int::try_from(*comp_vector).map_err(|_| libc::EINVAL);
    let made =
        depth.and_then(|depth| completion::create(context, depth, *cq_context, *channel, vector?));
    if let Ok(cq) = made {
        // SAFETY: the queue lives, and the program does not know it yet.
        set_functions(unsafe { &mut *cq.cast::<ibv_cq_ex>() });
    }
    made.unwrap_or_else(errno::null).cast()
}

fn set_functions(cq: &mut ibv_cq_ex) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_byte_len = Some(read_byte_len);
    cq.read_imm_data = Some(read_imm_data);
    cq.read_qp_num = Some(read_qp_num);
    cq.read_src_qp = Some(read_src_qp);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_slid = Some(read_slid);
    cq.read_sl = Some(read_sl);
    cq.read_dlid_path_bits = Some(read_dlid_path_bits);
}

/// The queue of a call.
///
/// # Safety
/// The pointer names a living queue.
unsafe fn trusted<'a>(cq: *mut ibv_cq_ex) -> &'a Cq {
    // SAFETY: the caller vouches for it; the structure begins with `ibv_cq`.
    unsafe { object::trusted::<Cq>(cq.cast()) }
}

/// Takes the first completion. If there is none, the poll ends at once, and the program must not end it.
unsafe extern "C" fn start_poll(named: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the caller gives a living queue and valid attributes.
    let (cq, mask) = unsafe { (trusted(named), (*attr).comp_mask) };
    if mask != 0 {
        return libc::EINVAL;
    }
    cq.current.begin();
    // SAFETY: the queue lives.
    let taken = unsafe { take(cq, named) };
    if taken != 0 {
        cq.current.end();
    }
    taken
}

unsafe extern "C" fn next_poll(named: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller gives a living queue whose poll it began.
    unsafe { take(trusted(named), named) }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the caller gives a living queue whose poll it began.
    unsafe { trusted(cq) }.current.end();
}

/// Takes a completion, and returns 0, `ENOENT` or the error of the queue.
///
/// # Safety
/// The pointer names a living queue, whose poll this thread began.
unsafe fn take(cq: &Cq, named: *mut ibv_cq_ex) -> c_int {
    cq.current.with(|wc| match cq.nic.poll(&cq.queue, slice::from_mut(wc)) {
        Ok(0) => libc::ENOENT,
        Ok(_) => {
            // SAFETY: the caller vouches for the queue. Only the poll's own thread uses both fields.
            unsafe {
                (&raw mut (*named).status).write(wc.status.0);
                (&raw mut (*named).wr_id).write(wc.wr_id);
            }
            0
        }
        Err(error) => error.errno.into(),
    })
}

/// Functions that read a field of the completion that was taken last.
macro_rules! readers {
    ($($name:ident: $type:ty = $read:expr;)*) => { $(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            let read: fn(&ibv_wc) -> $type = $read;
            // SAFETY: the caller gives a living queue.
            unsafe { trusted(cq) }.current.with(|wc| read(wc))
        }
    )* };
}

readers! {
    read_opcode: u32 = |wc| wc.opcode.0;
    read_vendor_err: u32 = |wc| wc.vendor_err;
    read_byte_len: u32 = |wc| wc.byte_len;
    read_imm_data: u32 = |wc| wc.imm_data;
    read_qp_num: u32 = |wc| wc.qp_num;
    read_src_qp: u32 = |wc| wc.src_qp;
    read_wc_flags: u32 = |wc| wc.flags.bits();
    read_slid: u32 = |wc| wc.slid.into();
    read_sl: u8 = |wc| wc.sl;
    read_dlid_path_bits: u8 = |wc| wc.dlid_path_bits;
}
