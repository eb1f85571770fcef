//! The data path: core's requests become libibverbs' on the stack, and go to the driver through
//! the context's operations, as C's inline functions do.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use invar_core::nic::{NicError, PollError, RecvWr, SendFlags, SendWr, Sge, Verb, Wc};

use super::handles::{Cq, Qp};
use crate::errno;
use crate::sys::*;

/// Requests of a list that are laid out at a time.
const BATCH: usize = 16;

/// A work request and its one buffer.
#[repr(C)]
struct Posted {
    wr: ibv_send_wr,
    sge: ibv_sge,
}

/// Room for requests, of which only the fields that count are written.
type Chain<const N: usize> = [MaybeUninit<Posted>; N];

impl Qp {
    #[inline(always)]
    pub(super) fn post_send(&self, wrs: &[SendWr]) -> Result<(), NicError> {
        match wrs {
            [a] if !is_inline(a) => self.post_chain(&mut [MaybeUninit::uninit()], wrs, 0),
            [a, b] if !is_inline(a) && !is_inline(b) => {
                self.post_chain(&mut [const { MaybeUninit::uninit() }; 2], wrs, 0)
            }
            _ => self.post_list(wrs),
        }
    }

    #[inline(never)]
    fn post_list(&self, wrs: &[SendWr]) -> Result<(), NicError> {
        let mut chain: Chain<BATCH> = [const { MaybeUninit::uninit() }; BATCH];
        // What is posted inline the CPU reads, whatever its address is: it must be a region's,
        // until it is posted.
        let ranges = wrs.iter().any(is_inline).then(|| self.pd.ranges());
        for (wrs, first) in wrs.chunks(BATCH).zip((0..).step_by(BATCH)) {
            let ours = |wr: &SendWr| ranges.as_ref().is_none_or(|ranges| ranges.cover(&wr.sge));
            let foreign = wrs.iter().position(|wr| is_inline(wr) && !ours(wr));
            let good = &wrs[..foreign.unwrap_or(wrs.len())];
            if !good.is_empty() {
                self.post_chain(&mut chain, good, first)?;
            }
            if let Some(at) = foreign {
                let cause = "inline bytes that are in no registered memory";
                let error = NicError::new(Verb::PostSend, libc::EFAULT, cause);
                return Err(NicError { index: index(first + at), ..error });
            }
        }
        Ok(())
    }

    /// Posts at least one request and at most `N`, the first of which is number `first` of its
    /// list. What is inline has been checked.
    #[inline(always)]
    fn post_chain<const N: usize>(
        &self,
        chain: &mut Chain<N>,
        wrs: &[SendWr],
        first: usize,
    ) -> Result<(), NicError> {
        let start: *mut ibv_send_wr = chain.as_mut_ptr().cast();
        let mut next = ptr::null_mut();
        for (room, wr) in chain.iter_mut().zip(wrs).rev() {
            next = lay_out(room, wr, next);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair that is there, and a chain of requests that is laid out. Drivers
        // take what they need of it before they return, and look only at the fields of our
        // operations. Buffers are named by key, which the device checks; inline ones are held.
        let rc = unsafe { (self.post_send)(self.raw(), start, &mut bad) };
        if rc == 0 { Ok(()) } else { Err(refused(rc, start, bad, first)) }
    }

    #[inline(always)]
    pub(super) fn post_recv(&self, wr: &RecvWr) -> Result<(), NicError> {
        let mut sge = buffer(&wr.sge);
        let mut raw = ibv_recv_wr {
            wr_id: wr.wr_id,
            next: ptr::null_mut(),
            sg_list: &mut sge,
            num_sge: c_int::from(wr.sge.length > 0),
        };
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post_chain`.
        let rc = unsafe { (self.post_recv)(self.raw(), &mut raw, &mut bad) };
        if rc == 0 { Ok(()) } else { Err(errno::of(Verb::PostRecv, rc)) }
    }
}

#[inline(always)]
fn is_inline(wr: &SendWr) -> bool {
    wr.flags.contains(SendFlags::INLINE)
}

#[inline(always)]
fn buffer(sge: &Sge) -> ibv_sge {
    ibv_sge { addr: sge.addr, length: sge.length, lkey: sge.lkey }
}

/// Lays out a request in front of `next`, and gives where.
#[inline(always)]
fn lay_out(
    room: &mut MaybeUninit<Posted>,
    wr: &SendWr,
    next: *mut ibv_send_wr,
) -> *mut ibv_send_wr {
    let posted = room.as_mut_ptr();
    // SAFETY: all is written within `room`, and nothing is read.
    unsafe {
        let sge = &raw mut (*posted).sge;
        sge.write(buffer(&wr.sge));
        let raw = &raw mut (*posted).wr;
        (&raw mut (*raw).wr_id).write(wr.wr_id);
        (&raw mut (*raw).next).write(next);
        (&raw mut (*raw).sg_list).write(sge);
        (&raw mut (*raw).num_sge).write(c_int::from(wr.sge.length > 0));
        (&raw mut (*raw).opcode).write(wr.opcode as u32);
        (&raw mut (*raw).send_flags).write(wr.flags.bits().into());
        (&raw mut (*raw).imm_data).write(wr.imm_data);
        (&raw mut (*raw).remote_addr).write(wr.remote_addr);
        (&raw mut (*raw).rkey).write(wr.rkey);
        raw
    }
}

#[cold]
#[inline(never)]
fn refused(rc: c_int, start: *mut ibv_send_wr, bad: *mut ibv_send_wr, first: usize) -> NicError {
    // A driver that does not say which refused the first.
    let offset = if bad.is_null() { 0 } else { bad.addr().wrapping_sub(start.addr()) };
    let error = errno::of(Verb::PostSend, rc);
    NicError { index: index(first + offset / size_of::<Posted>()), ..error }
}

fn index(at: usize) -> u8 {
    u8::try_from(at).unwrap_or(u8::MAX)
}

impl Cq {
    /// The driver fills core's completions, whose layout is `ibv_wc`'s.
    #[inline(always)]
    pub(super) fn poll(&self, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: a queue that is there, and room for as many completions as are asked for; any
        // bits are a `Wc`.
        let rc = unsafe { (self.poll_cq)(self.raw.as_ptr(), room, wcs.as_mut_ptr().cast()) };
        if rc >= 0 { Ok(rc as u32) } else { Err(PollError { errno: libc::EIO as u16 }) }
    }
}
