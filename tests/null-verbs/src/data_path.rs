//! What programs call through the context's operations.

use std::ffi::c_int;
use std::slice;

use invar_core::nic::{NicError, RecvWr, SendFlags, SendOpcode, SendWr, Sge, Wc, WcStatus};
use invar_testkit::null::Fabric;
use invar_verbs::sys::*;

use crate::resource::index;
use crate::{SETTINGS, delay, fabric, fatal};

/// By their codes.
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
        // SAFETY: a chain of requests that ends in null.
        let posted = match unsafe { read(next) } {
            Some(wr) => {
                if wr.opcode == SendOpcode::RdmaRead {
                    note(&wr);
                }
                if SETTINGS.delay_polls > 0 {
                    // SAFETY: a queue pair.
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
            // SAFETY: room to name a request.
            unsafe { *bad = next };
            return errno;
        }
        // SAFETY: as above.
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
    // SAFETY: a chain of requests that ends in null.
    while let Some(raw) = unsafe { next.as_ref() } {
        let posted = match sge(raw.sg_list, raw.num_sge) {
            Some(sge) => {
                let wr = RecvWr { wr_id: raw.wr_id, sge, ..RecvWr::default() };
                fabric.post_recv(index(qp), &wr).map_err(|error| refused(qp, &error))
            }
            None => Err(libc::EINVAL),
        };
        if let Err(errno) = posted {
            // SAFETY: room to name a request.
            unsafe { *bad = next };
            return errno;
        }
        next = raw.next;
    }
    0
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wcs: *mut ibv_wc) -> c_int {
    let Ok(room) = usize::try_from(room) else { return -1 };
    // SAFETY: room for so many completions, of which any bits are some.
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

/// Carries out what has waited for this poll. Nobody is left to be told that it is refused.
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

/// In strict mode a completion must be a success, or follow one that is not.
fn judge(wc: &Wc) {
    if ![WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR].contains(&wc.status) {
        fatal(&format!("QP {:#x}: work request {:#x}: {:?}", wc.qp_num, wc.wr_id, wc.status));
    }
}

/// What a refusal returns.
fn refused(qp: *mut ibv_qp, error: &NicError) -> c_int {
    if SETTINGS.is_strict {
        // SAFETY: a queue pair.
        fatal(&format!("QP {:#x}: {error}", unsafe { (*qp).qp_num }));
    }
    error.errno
}

/// Reads no field that is another operation's: programs may leave these out.
///
/// # Safety
/// A request.
unsafe fn read(raw: *const ibv_send_wr) -> Option<SendWr> {
    // SAFETY: the caller's promise.
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

/// One buffer, or none.
fn sge(list: *mut ibv_sge, len: c_int) -> Option<Sge> {
    match len {
        0 => Some(Sge::default()),
        1 => {
            // SAFETY: a list of one.
            let ibv_sge { addr, length, lkey } = unsafe { *list };
            Some(Sge { addr, length, lkey })
        }
        _ => None,
    }
}
