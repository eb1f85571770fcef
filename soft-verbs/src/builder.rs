//! Queue pairs whose sends functions build: `ibv_create_qp_ex` with operations, and `ibv_wr_*`.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::{ptr, slice};

use invar_core::nic::SendOpcode;
use invar_verbs::sys::extended::*;
use invar_verbs::sys::provider::*;
use invar_verbs::sys::{self, IBV_QPT_RC, IBV_QPT_UD, ibv_context, ibv_send_wr, ibv_sge};

use crate::errno;
use crate::object;
use crate::post;
use crate::queue_pair::{self, Qp};

versions! {
    "IBVERBS_1.6":
        ibv_qp_to_qp_ex;
}

const SENDS: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
const WRITES: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const ANSWERED: u64 = IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
const WINDOWS: u64 =
    IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;

/// The operations of a transport service.
fn operations(qp_type: u32) -> u64 {
    match qp_type {
        IBV_QPT_RC => SENDS | WRITES | ANSWERED | WINDOWS,
        IBV_QPT_UD => SENDS,
        _ => SENDS | WRITES,
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    _: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut sys::ibv_qp {
    let known =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    // SAFETY: the caller gives valid attributes, with the fields that `comp_mask` names.
    let (mask, qp_type, pd) = unsafe { ((*init).comp_mask, (*init).qp_type, (*init).pd) };
    let has = |flag| mask & flag != 0;
    // SAFETY: as above.
    let has_flags = has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && unsafe { (*init).create_flags } != 0;
    let wanted = match has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
        // SAFETY: as above.
        true => unsafe { (*init).send_ops_flags },
        false => 0,
    };
    if mask & !known != 0 || has_flags || wanted & !operations(qp_type) != 0 {
        return errno::null(libc::EOPNOTSUPP);
    }
    if !has(IBV_QP_INIT_ATTR_PD) {
        return errno::null(libc::EINVAL);
    }
    // SAFETY: the extended attributes begin with the others.
    let made = queue_pair::create(pd.cast(), unsafe { &mut *init.cast() });
    if let Ok(qp) = made
        && has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
    {
        // SAFETY: the queue pair lives, and the program does not know it yet.
        set_functions(unsafe { &mut *qp.cast::<ibv_qp_ex>() });
    }
    made.unwrap_or_else(errno::null).cast()
}

/// Returns null for a queue pair that was created without operations.
#[unsafe(no_mangle)]
extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match object::get::<Qp>(qp) {
        Ok(object) if object.extended.wr_start.is_some() => qp.cast(),
        Ok(_) => ptr::null_mut(),
        Err(errno) => errno::null(errno),
    }
}

fn set_functions(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(atomic_fetch_add);
    qp.wr_bind_mw = Some(bind_mw);
    qp.wr_local_inv = Some(local_inv);
    qp.wr_send_inv = Some(send_inv);
    qp.wr_rdma_read = Some(rdma_read);
    qp.wr_rdma_write = Some(rdma_write);
    qp.wr_rdma_write_imm = Some(rdma_write_imm);
    qp.wr_send = Some(send);
    qp.wr_send_imm = Some(send_imm);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
}

/// The queue pair of a call.
///
/// # Safety
/// The pointer names a living queue pair.
unsafe fn trusted<'a>(qp: *mut ibv_qp_ex) -> &'a Qp {
    // SAFETY: the caller vouches for it; the structure begins with `ibv_qp`.
    unsafe { object::trusted::<Qp>(qp.cast()) }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller gives a living queue pair.
    unsafe { trusted(qp) }.batch.begin();
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller gives a living queue pair.
    let qp = unsafe { trusted(qp) };
    qp.batch.with(|batch| batch.clear());
    qp.batch.end();
}

/// Posts the batch. If a request is wrong or there is no room for all, none is posted. In the state ERR the
/// requests before the wrong one are flushed.
unsafe extern "C" fn complete(named: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller gives a living queue pair.
    let qp = unsafe { trusted(named) };
    let result = qp.batch.with(|batch| {
        let posted = batch.chain().and_then(|first| {
            let count = batch.len();
            // SAFETY: the chain has valid requests, as far as the program gave valid buffers.
            unsafe { post::post_chain(qp, first, Some(count)) }.0
        });
        batch.clear();
        posted
    });
    qp.batch.end();
    errno::status(result)
}

/// Begins a request to memory of the peer.
///
/// # Safety
/// The pointer names a living queue pair.
unsafe fn begin(named: *mut ibv_qp_ex, opcode: u32, set: impl FnOnce(*mut ibv_send_wr)) {
    // SAFETY: the caller vouches for the queue pair. The program sets both fields before the call.
    let (qp, wr_id, flags) = unsafe { (trusted(named), (*named).wr_id, (*named).wr_flags) };
    qp.batch.with(|batch| batch.push(wr_id, (opcode, flags), set));
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, SendOpcode::Send as u32, |_| {}) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: the caller gives a living queue pair, and `begin` a place for the request.
    unsafe { begin(qp, SendOpcode::SendWithImm as u32, |wr| (*wr).imm_data = imm_data) };
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller gives a living queue pair, and `begin` a place for the request.
    unsafe { begin(qp, SendOpcode::SendWithInv as u32, |wr| (*wr).imm_data = rkey) };
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller gives a living queue pair, and `begin` a place for the request.
    unsafe { begin(qp, IBV_WR_LOCAL_INV, |wr| (*wr).imm_data = rkey) };
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller gives a valid description.
    let bind_info = unsafe { info.read() };
    let set = |wr: *mut ibv_send_wr| {
        let place = wr.wrapping_byte_add(BIND_MW_OFFSET);
        // SAFETY: a request has room for `bind_mw` there.
        unsafe { place.cast::<ibv_wr_bind_mw>().write(ibv_wr_bind_mw { mw, rkey, bind_info }) };
    };
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, IBV_WR_BIND_MW, set) };
}

/// A function that names memory of the peer in a request.
fn remote(rkey: u32, remote_addr: u64) -> impl FnOnce(*mut ibv_send_wr) {
    // SAFETY: `begin` gives a place for the request.
    move |wr| unsafe { ((*wr).rkey, (*wr).remote_addr) = (rkey, remote_addr) }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, SendOpcode::RdmaRead as u32, remote(rkey, addr)) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, SendOpcode::RdmaWrite as u32, remote(rkey, addr)) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm_data: u32) {
    let set = |wr: *mut ibv_send_wr| {
        remote(rkey, addr)(wr);
        // SAFETY: `begin` gives a place for the request.
        unsafe { (*wr).imm_data = imm_data };
    };
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, SendOpcode::RdmaWriteWithImm as u32, set) };
}

/// A function that writes the operands of an atomic.
fn operands(wr_atomic: ibv_wr_atomic) -> impl FnOnce(*mut ibv_send_wr) {
    move |wr| {
        let place = wr.wrapping_byte_add(offset_of!(ibv_send_wr, remote_addr));
        // SAFETY: a request has room for `wr.atomic` there.
        unsafe { place.cast::<ibv_wr_atomic>().write(wr_atomic) };
    }
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare_add: u64,
    swap: u64,
) {
    let set = operands(ibv_wr_atomic { remote_addr, compare_add, swap, rkey });
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, set) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    let set = operands(ibv_wr_atomic { remote_addr, compare_add: add, swap: 0, rkey });
    // SAFETY: the caller gives a living queue pair.
    unsafe { begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, set) };
}

unsafe extern "C" fn set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    let set = |wr: *mut ibv_send_wr| {
        let place = wr.wrapping_byte_add(offset_of!(ibv_send_wr, remote_addr));
        // SAFETY: a request has room for `wr.ud` there.
        unsafe { place.cast::<ibv_wr_ud>().write(ibv_wr_ud { ah, remote_qpn, remote_qkey }) };
    };
    // SAFETY: the caller gives a living queue pair.
    unsafe { trusted(qp) }.batch.with(|batch| batch.set(set));
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller gives a living queue pair.
    unsafe { trusted(qp) }.batch.with(|batch| batch.set_list(&[ibv_sge { addr, length, lkey }]));
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller gives a living queue pair.
    let qp = unsafe { trusted(qp) };
    qp.batch.with(|batch| match count {
        0 => batch.set_list(&[]),
        // SAFETY: the caller gives a list of `count` buffers.
        _ if count <= qp.cap.max_send_sge as usize => unsafe {
            batch.set_list(slice::from_raw_parts(list, count));
        },
        _ => batch.fail(libc::EINVAL),
    });
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller gives a living queue pair and `length` bytes.
    unsafe { set_inline_data_list(qp, 1, &ibv_data_buf { addr, length }) };
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller gives a living queue pair.
    let qp = unsafe { trusted(qp) };
    let most = qp.cap.max_inline_data as usize;
    let pieces = (0..count).map(|at| {
        // SAFETY: the caller gives a list of `count` pieces.
        let ibv_data_buf { addr, length } = unsafe { list.add(at).read() };
        (addr.cast_const().cast::<u8>(), length)
    });
    // SAFETY: the caller gives pieces with readable bytes.
    qp.batch.with(|batch| unsafe { batch.set_inline(pieces, most) });
}
