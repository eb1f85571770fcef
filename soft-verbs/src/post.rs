//! `ibv_post_send` and `ibv_post_recv`.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use invar_core::nic::{AddressVector, Atomic, RecvWr, SendFlags, SendOpcode, SendWr, Sge};
use invar_core::roce::qp::Destination;
use invar_linux::soft::device::LocalWork;
use invar_linux::soft::{Device, Receiver};
use invar_verbs::sys::provider::{
    BIND_MW_OFFSET, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV, ibv_wr_atomic, ibv_wr_bind_mw, ibv_wr_ud,
};
use invar_verbs::sys::{IBV_QPT_UD, ibv_qp, ibv_recv_wr, ibv_send_wr};

use crate::address::Ah;
use crate::errno;
use crate::object;
use crate::peers;
use crate::queue_pair::Qp;
use crate::window;
use crate::work_requests::{buffers, name_refused};

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller gives a living queue pair, and a chain of valid requests.
    let (posted, wr) = unsafe { post_chain(object::trusted::<Qp>(qp.cast()), wr, None) };
    name_refused(posted, wr, bad_wr)
}

/// Posts a chain, and returns the first request that was not posted. With `needed`, nothing is posted
/// unless the queue has room for so many requests, and none of them is wrong.
///
/// # Safety
/// The chain has valid requests.
#[inline]
pub(crate) unsafe fn post_chain(
    qp: &Qp,
    mut wr: *mut ibv_send_wr,
    needed: Option<usize>,
) -> (Result<(), c_int>, *mut ibv_send_wr) {
    let posted = qp.nic.post_sends(&qp.pair, |device, qpn| {
        let room = needed.map(|_| device.send_room(qpn));
        if needed.zip(room).is_some_and(|(needed, room)| needed > room as usize) {
            return Err(libc::ENOMEM);
        }
        while !wr.is_null() {
            let posted = post_one(qp, wr, device, qpn);
            if let (Err(_), Some(room)) = (posted, room) {
                device.withdraw_sends(qpn, room - device.send_room(qpn));
            }
            posted?;
            // SAFETY: the caller gives a chain of valid requests.
            wr = unsafe { (*wr).next };
        }
        Ok(())
    });
    (posted, wr)
}

#[inline]
fn post_one(qp: &Qp, wr: *mut ibv_send_wr, device: &mut Device, qpn: u32) -> Result<(), c_int> {
    // SAFETY: the caller of `post_send` gives a valid request.
    let request = unsafe { &*wr };
    match request.opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => atomic(qp, wr, device, qpn),
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW => local(qp, wr, device, qpn),
        _ => {
            if qp.base().qp_type == IBV_QPT_UD {
                device.set_receiver(qpn, &receiver(wr)?).map_err(errno::of)?;
            }
            send(qp, request, device, qpn)
        }
    }
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller gives a living queue pair.
    let qp = unsafe { object::trusted::<Qp>(qp.cast()) };
    let posted = qp.nic.post_recvs(&qp.pair, |device, qpn| {
        while !wr.is_null() {
            // SAFETY: the caller gives a chain of valid requests.
            let request = unsafe { &*wr };
            recv(qp, request, device, qpn)?;
            wr = request.next;
        }
        Ok(())
    });
    name_refused(posted, wr, bad_wr)
}

fn opcode(code: u32) -> Result<SendOpcode, c_int> {
    use SendOpcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, SendWithInv};
    let known = [RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, RdmaRead, SendWithInv];
    known.into_iter().find(|opcode| *opcode as u32 == code).ok_or(libc::EOPNOTSUPP)
}

/// The receiver of a datagram.
fn receiver(wr: *mut ibv_send_wr) -> Result<Receiver, c_int> {
    // SAFETY: the caller of `post_send` gives a valid request.
    let opcode = unsafe { (*wr).opcode };
    if opcode != SendOpcode::Send as u32 && opcode != SendOpcode::SendWithImm as u32 {
        return Err(libc::EINVAL);
    }
    let named = wr.wrapping_byte_add(offset_of!(ibv_send_wr, remote_addr));
    // SAFETY: a request with this opcode has `wr.ud` there.
    let ibv_wr_ud { ah, remote_qpn, remote_qkey } = unsafe { named.cast::<ibv_wr_ud>().read() };
    if ah.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller of `post_send` gives a living address handle.
    let Ah { address, .. } = unsafe { object::trusted::<Ah>(ah) };
    let ah = AddressVector { udp_port: peers::port(remote_qpn), ..*address };
    let qp_num = remote_qpn & 0xff_ffff;
    Ok(Receiver { ah, destination: Destination { qp_num, qkey: remote_qkey } })
}

#[inline]
fn send(qp: &Qp, request: &ibv_send_wr, device: &mut Device, qpn: u32) -> Result<(), c_int> {
    // SAFETY: the caller of `post_send` gives valid requests.
    let list = unsafe { buffers(request.sg_list, request.num_sge, qp.cap.max_send_sge) }?;
    let flags = flags(qp, request)?;
    let mut wr = SendWr {
        wr_id: request.wr_id,
        opcode: opcode(request.opcode)?,
        flags,
        imm_data: request.imm_data,
        remote_addr: request.remote_addr,
        rkey: request.rkey,
        ..SendWr::default()
    };
    let posted = if flags.contains(SendFlags::INLINE) {
        let length = list.iter().try_fold(0u32, |sum, sge| sum.checked_add(sge.length));
        wr.sge.length = length.ok_or(libc::EINVAL)?;
        device.post_send_filled(qpn, &wr, |bytes| fill(bytes, list))
    } else {
        match list {
            [] => device.post_send(qpn, &wr),
            [sge] => {
                wr.sge = *sge;
                device.post_send(qpn, &wr)
            }
            _ => device.post_send_list(qpn, &wr, list),
        }
    };
    posted.map_err(errno::of)
}

fn flags(qp: &Qp, request: &ibv_send_wr) -> Result<SendFlags, c_int> {
    let mut flags = SendFlags::from_bits(request.send_flags).ok_or(libc::EOPNOTSUPP)?;
    flags.set(SendFlags::SIGNALED, qp.signals_all || flags.contains(SendFlags::SIGNALED));
    Ok(flags)
}

/// Posts an atomic, whose result goes to one buffer.
fn atomic(qp: &Qp, wr: *mut ibv_send_wr, device: &mut Device, qpn: u32) -> Result<(), c_int> {
    // SAFETY: the caller of `post_send` gives a valid request.
    let request = unsafe { &*wr };
    let operands = wr.wrapping_byte_add(offset_of!(ibv_send_wr, remote_addr));
    // SAFETY: a request with this opcode has `wr.atomic` there.
    let operands = unsafe { operands.cast::<ibv_wr_atomic>().read() };
    // SAFETY: the caller of `post_send` gives valid requests.
    let list = unsafe { buffers(request.sg_list, request.num_sge, 1) }?;
    let [sge] = *list else { return Err(libc::EINVAL) };
    let ibv_wr_atomic { remote_addr, compare_add, swap, rkey } = operands;
    let atomic = match request.opcode {
        IBV_WR_ATOMIC_CMP_AND_SWP => Atomic::CompareSwap { compare: compare_add, swap },
        _ => Atomic::FetchAdd { add: compare_add },
    };
    let (wr_id, flags) = (request.wr_id, flags(qp, request)?);
    let wr = SendWr { wr_id, flags, remote_addr, rkey, sge, ..SendWr::default() };
    device.post_atomic(qpn, &wr, atomic).map_err(errno::of)
}

/// Posts a bind of a memory window, or a local invalidation.
#[cold]
fn local(qp: &Qp, wr: *mut ibv_send_wr, device: &mut Device, qpn: u32) -> Result<(), c_int> {
    // SAFETY: the caller of `post_send` gives a valid request.
    let request = unsafe { &*wr };
    let work = match request.opcode {
        IBV_WR_LOCAL_INV => LocalWork::Invalidate(request.imm_data),
        _ => {
            let asked = wr.wrapping_byte_add(BIND_MW_OFFSET);
            // SAFETY: a request with this opcode has `bind_mw` there.
            window::work_of(unsafe { &*asked.cast::<ibv_wr_bind_mw>() })?
        }
    };
    device.post_local(qpn, (request.wr_id, flags(qp, request)?), work).map_err(errno::of)
}

/// Copies inline data, which together has the length of `bytes`.
fn fill(bytes: &mut [u8], list: &[Sge]) {
    let mut rest = bytes;
    for sge in list {
        let (room, behind) = rest.split_at_mut(sge.length as usize);
        let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the caller of `post_send` gives valid buffers, and `room` has the buffer's length.
        unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), room.len()) };
        rest = behind;
    }
}

#[inline]
fn recv(qp: &Qp, request: &ibv_recv_wr, device: &mut Device, qpn: u32) -> Result<(), c_int> {
    // SAFETY: the caller of `post_recv` gives valid requests.
    let list = unsafe { buffers(request.sg_list, request.num_sge, qp.cap.max_recv_sge) }?;
    if !qp.base().srq.is_null() {
        return Err(libc::EINVAL);
    }
    let wr = RecvWr { wr_id: request.wr_id, ..RecvWr::default() };
    let posted = match list {
        [] => device.post_recv(qpn, &wr),
        [sge] => device.post_recv(qpn, &RecvWr { sge: *sge, ..wr }),
        _ => device.post_recv_list(qpn, &wr, list),
    };
    posted.map_err(errno::of)
}
