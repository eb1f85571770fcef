//! The functions that programs call through the operations of a context.

use std::ffi::c_int;
use std::slice;

use invar_core::nic::{NicError, RecvWr, SendFlags, SendOpcode, SendWr, Sge, Wc, WcStatus};
use invar_testkit::null::Fabric;
use invar_verbs::sys::*;

use crate::resource::index;
use crate::{SETTINGS, delay, fabric, fatal};

/// The opcodes, in the order of their codes in `verbs.h`.
const OPCODES: [SendOpcode; 5] = [
    SendOpcode::RdmaWrite,
    SendOpcode::RdmaWriteWithImm,
    SendOpcode::Send,
    SendOpcode::SendWithImm,
    SendOpcode::RdmaRead,
];

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut next: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut fabric = fabric();
    while !next.is_null() {
        // SAFETY: the caller gives a chain of valid requests that ends in null.
        let posted = match unsafe { read(next) } {
            Some(wr) => {
                if wr.opcode == SendOpcode::RdmaRead {
                    note(&wr);
                }
                if SETTINGS.delay_polls > 0 {
                    // SAFETY: the caller gives a valid queue pair.
                    let cq = index(unsafe { (*qp).send_cq });
                    delay::put(index(qp), cq, wr, SETTINGS.delay_polls);
                    Ok(())
                } else {
                    fabric.post_send(index(qp), &[wr]).map_err(|error| refused(qp, &error))
                }
            }
            None => Err(libc::EINVAL),
        };
        if let Err(errno) = posted {
            // SAFETY: the caller gives a valid place for the refused request.
            unsafe { *bad = next };
            return errno;
        }
        // SAFETY: `next` is not null, so it is a request of the caller's chain.
        next = unsafe { (*next).next };
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut next: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut fabric = fabric();
    // SAFETY: the caller gives a chain of valid requests that ends in null.
    while let Some(raw) = unsafe { next.as_ref() } {
        let posted = match sge(raw.sg_list, raw.num_sge) {
            Some(sge) => {
                let wr = RecvWr { wr_id: raw.wr_id, sge, ..RecvWr::default() };
                fabric.post_recv(index(qp), &wr).map_err(|error| refused(qp, &error))
            }
            None => Err(libc::EINVAL),
        };
        if let Err(errno) = posted {
            // SAFETY: the caller gives a valid place for the refused request.
            unsafe { *bad = next };
            return errno;
        }
        next = raw.next;
    }
    0
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wcs: *mut ibv_wc) -> c_int {
    let Ok(room) = usize::try_from(room) else { return -1 };
    // SAFETY: the caller gives room for `room` completions, and any bits are a valid `Wc`.
    let wcs: &mut [Wc] = unsafe { slice::from_raw_parts_mut(wcs, room) };
    let mut fabric = fabric();
    if SETTINGS.delay_polls > 0 {
        carry_out(&mut fabric, index(cq));
    }
    let got = fabric.poll(index(cq), wcs);
    drop(fabric);
    if SETTINGS.is_strict {
        wcs[..got as usize].iter().for_each(judge);
    }
    got as c_int
}

/// Carries out the requests that have waited for this poll. A refused request aborts the process, since
/// no caller remains to be told.
#[cold]
fn carry_out(fabric: &mut Fabric, cq: usize) {
    for (qp, wr) in delay::take(cq) {
        if let Err(error) = fabric.post_send(qp, &[wr]) {
            fatal(&format!("QP {:#x}, later: {error}", Fabric::qpn(qp)));
        }
    }
}

#[cold]
fn note(read: &SendWr) {
    let SendWr { remote_addr, sge, .. } = read;
    SETTINGS.note(|| format!("RDMA_READ remote_addr={remote_addr:#x} length={}", sge.length));
}

/// Checks a completion in strict mode: it must be a success, or flushed after an error.
fn judge(wc: &Wc) {
    if ![WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR].contains(&wc.status) {
        fatal(&format!("QP {:#x}: work request {:#x}: {:?}", wc.qp_num, wc.wr_id, wc.status));
    }
}

/// The error code that a refused call returns.
fn refused(qp: *mut ibv_qp, error: &NicError) -> c_int {
    if SETTINGS.is_strict {
        // SAFETY: the caller gives a valid queue pair.
        fatal(&format!("QP {:#x}: {error}", unsafe { (*qp).qp_num }));
    }
    error.errno
}

/// Reads the fields that SEND, WRITE and READ use. Programs may leave the fields of other operations
/// uninitialised.
///
/// # Safety
/// `raw` points to a valid request.
unsafe fn read(raw: *const ibv_send_wr) -> Option<SendWr> {
    // SAFETY: the caller promises that `raw` points to a valid request, and no field of another
    // operation is read.
    unsafe {
        Some(SendWr {
            wr_id: (*raw).wr_id,
            remote_addr: (*raw).remote_addr,
            sge: sge((*raw).sg_list, (*raw).num_sge)?,
            rkey: (*raw).rkey,
            imm_data: (*raw).imm_data,
            opcode: *OPCODES.get((*raw).opcode as usize)?,
            flags: SendFlags::from_bits((*raw).send_flags)?,
            ..SendWr::default()
        })
    }
}

/// Reads a list of one buffer or none. A longer list gives `None`.
fn sge(list: *mut ibv_sge, len: c_int) -> Option<Sge> {
    match len {
        0 => Some(Sge::default()),
        1 => {
            // SAFETY: the caller says that the list has one entry.
            let ibv_sge { addr, length, lkey } = unsafe { *list };
            Some(Sge { addr, length, lkey })
        }
        _ => None,
    }
}
