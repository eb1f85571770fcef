//! The data path: core's requests are libibverbs' and go to the driver as they lie, through the
//! context's operations, as C's inline functions do.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use invar_core::nic::{
    Link, NicError, NumSge, PollError, RecvWr, SendFlags, SendList, SendWr, Sge, Verb, Wc,
};

use super::handles::{Cq, Qp};
use crate::errno;
use crate::sys::*;

macro_rules! assert_same_offsets {
    ($ours:ident $theirs:ident: $($our:ident $their:ident),+) => {
        $(const _: () = assert!(offset_of!($ours, $our) == offset_of!($theirs, $their));)+
    };
}

assert_same_offsets!(SendWr ibv_send_wr: wr_id wr_id, next next, sg_list sg_list, num_sge num_sge,
    opcode opcode, flags send_flags, imm_data imm_data, remote_addr remote_addr, rkey rkey);
assert_same_offsets!(RecvWr ibv_recv_wr: wr_id wr_id, next next, sg_list sg_list, num_sge num_sge);
assert_same_offsets!(Sge ibv_sge: addr addr, length length, lkey lkey);

/// Requests that are copied into one chain.
const CHAIN: usize = 16;

impl Qp {
    pub(super) fn post_send(&self, wrs: &[SendWr]) -> Result<(), NicError> {
        match self.post_copies(wrs) {
            0 => Ok(()),
            rc => Err(self.send_error(self.refused(wrs), rc)),
        }
    }

    /// Posts the requests of a list from number `from` on.
    #[inline(always)]
    pub(super) fn post_list<const N: usize>(
        &self,
        list: &mut SendList<N>,
        from: usize,
    ) -> Result<(), NicError> {
        // A number, as small as a register: the error is not made before it is known that there is one.
        let rc = match list.linked(from) {
            // SAFETY: a chain that ends, of requests that are linked; none of it is inline.
            Some(start) => unsafe { self.post_chain(start) },
            None => self.post_unlinked(list, from),
        };
        if rc == 0 {
            return Ok(());
        }
        // Of one request the list need not be remembered during the call.
        let index = if N == 1 { 0 } else { self.refused(list.wrs_from(from)) };
        Err(self.send_error(index, rc))
    }

    /// Posts a list that is not linked where it lies, or with inline data.
    #[cold]
    #[inline(never)]
    fn post_unlinked<const N: usize>(&self, list: &mut SendList<N>, from: usize) -> c_int {
        list.link();
        match list.linked(from) {
            // SAFETY: as in `post_list`.
            Some(start) => unsafe { self.post_chain(start) },
            None => self.post_copies(list.wrs_from(from)),
        }
    }

    /// Posts copies of requests, which are linked as a driver takes them. What is refused is named
    /// where it lies in `wrs`.
    #[inline(never)]
    fn post_copies(&self, wrs: &[SendWr]) -> c_int {
        // What is posted inline the CPU reads, whatever its address is: it must be a region's, until
        // it is posted.
        let ranges = wrs.iter().any(is_inline).then(|| self.pd.ranges());
        let is_held = |wr: &SendWr| ranges.as_ref().is_none_or(|ranges| ranges.cover(&wr.sge));
        let refused = wrs.iter().position(|wr| is_inline(wr) && !is_held(wr));
        for wrs in wrs[..refused.unwrap_or(wrs.len())].chunks(CHAIN) {
            let mut chain = [SendWr::default(); CHAIN];
            let chain = &mut chain[..wrs.len()];
            chain.copy_from_slice(wrs);
            let mut next = Link::NULL;
            for wr in chain.iter_mut().rev() {
                (wr.next, wr.sg_list) = (next, Link::to(&raw mut wr.sge));
                wr.num_sge = if wr.sge.length > 0 { NumSge::One } else { NumSge::Zero };
                next = Link::to(wr);
            }
            // SAFETY: they are linked, and what is inline has been looked at.
            let rc = unsafe { self.post_chain(chain.as_mut_ptr()) };
            if rc != 0 {
                self.refuse(wrs.get(self.refused(chain)));
                return rc;
            }
        }
        if let Some(at) = refused {
            self.refuse(wrs.get(at));
            return libc::EFAULT;
        }
        0
    }

    /// Posts requests that are linked; gives what the driver does, 0 for success.
    ///
    /// # Safety
    /// They end, and what is inline stays readable meanwhile.
    #[inline(always)]
    unsafe fn post_chain(&self, start: *mut SendWr) -> c_int {
        // SAFETY: a queue pair that is there, and a chain of requests that ends. Drivers take what
        // they need of it before they return, and look only at the fields of our operations, which
        // a `SendWr` has. Buffers are named by key, which the device checks.
        unsafe { (self.post_send)(self.raw(), start.cast(), self.bad.as_ptr().cast()) }
    }

    /// Says which request is refused, as a driver does.
    fn refuse(&self, wr: Option<&SendWr>) {
        self.bad.set(wr.map_or(ptr::null_mut(), |wr| ptr::from_ref(wr).cast_mut().cast()));
    }

    /// Which of these requests was refused. A driver that does not say refused the first.
    #[cold]
    #[inline(never)]
    fn refused(&self, wrs: &[SendWr]) -> usize {
        let bad = self.bad.replace(ptr::null_mut());
        let offset = if bad.is_null() { 0 } else { bad.addr().wrapping_sub(wrs.as_ptr().addr()) };
        offset / size_of::<SendWr>()
    }

    #[cold]
    #[inline(never)]
    fn send_error(&self, index: usize, rc: c_int) -> NicError {
        let index = u8::try_from(index).unwrap_or(u8::MAX);
        NicError { index, ..self.with_state(errno::of(Verb::PostSend, rc)) }
    }

    #[inline(always)]
    pub(super) fn post_recv(&self, wr: &RecvWr) -> Result<(), NicError> {
        if wr.sge.length == 0 {
            return self.post_empty_recv(wr);
        }
        let rc = self.post_recv_into(wr);
        if rc == 0 { Ok(()) } else { Err(self.recv_error(rc)) }
    }

    /// A receive without a buffer, which lies as a driver takes it.
    #[inline(always)]
    pub(super) fn post_empty_recv(&self, wr: &RecvWr) -> Result<(), NicError> {
        let rc = self.post_one_recv(ptr::from_ref(wr).cast_mut().cast());
        if rc == 0 { Ok(()) } else { Err(self.recv_error(rc)) }
    }

    #[cold]
    #[inline(never)]
    fn recv_error(&self, rc: c_int) -> NicError {
        self.with_state(errno::of(Verb::PostRecv, rc))
    }

    /// A receive that has a buffer.
    #[inline(never)]
    fn post_recv_into(&self, wr: &RecvWr) -> c_int {
        let Sge { addr, length, lkey } = wr.sge;
        let mut sge = ibv_sge { addr, length, lkey };
        let next = ptr::null_mut();
        let mut wr = ibv_recv_wr { wr_id: wr.wr_id, next, sg_list: &raw mut sge, num_sge: 1 };
        self.post_one_recv(&raw mut wr)
    }

    #[inline(always)]
    fn post_one_recv(&self, wr: *mut ibv_recv_wr) -> c_int {
        // SAFETY: as in `post_chain`.
        unsafe { (self.post_recv)(self.raw(), wr, self.bad_recv.as_ptr().cast()) }
    }
}

#[inline(always)]
fn is_inline(wr: &SendWr) -> bool {
    wr.flags.contains(SendFlags::INLINE)
}

impl Cq {
    /// The driver fills core's completions, whose layout is `ibv_wc`'s.
    #[inline(always)]
    pub(super) fn poll(&self, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: a queue that is there, and room for as many completions as are asked for; any
        // bits are a `Wc`.
        let rc = unsafe { (self.poll_cq)(self.raw.as_ptr(), room, wcs.as_mut_ptr().cast()) };
        match rc {
            0 => Ok(0),
            1 => Ok(1),
            2.. => Ok(rc as u32),
            _ => Err(PollError { errno: libc::EIO as u16 }),
        }
    }
}
