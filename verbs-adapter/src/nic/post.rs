//! The data path. Core's work requests have the layout of libibverbs', so the driver takes them without
//! a copy. Calls go through the context's operation table, as in the inline functions of `verbs.h`.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use invar_core::nic::{
    Link, NicError, NumSge, PollError, RecvWr, Refused, SendFlags, SendList, SendWr, Sge, Verb, Wc,
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

/// Maximum number of requests that one chain of copies holds.
const CHAIN: usize = 16;

impl Qp {
    pub(super) fn post_send(&self, wrs: &[SendWr]) -> Result<(), NicError> {
        match self.post_copies(wrs) {
            0 => Ok(()),
            rc => Err(self.send_error(self.refused(wrs), rc)),
        }
    }

    /// Posts the requests of a list, starting with number `from`.
    #[inline(always)]
    pub(super) fn post_list<const N: usize>(
        &self,
        list: &mut SendList<N>,
        from: usize,
    ) -> Result<(), Refused> {
        let rc = match list.linked(from) {
            // SAFETY: The chain is linked and ends, and none of its requests is inline.
            Some(start) => unsafe { self.post_chain(start) },
            None => self.post_unlinked(list, from),
        };
        if rc == 0 { Ok(()) } else { Err(Refused { errno: rc }) }
    }

    /// Makes the error of a refused post; `wrs` are its work requests, and a receive has none.
    #[cold]
    pub(super) fn explain(&self, wrs: &[SendWr], refused: Refused) -> NicError {
        match wrs {
            [] => self.recv_error(refused.errno),
            _ => self.send_error(self.refused(wrs), refused.errno),
        }
    }

    /// Posts a list that is not linked yet, or that has inline data.
    #[cold]
    #[inline(never)]
    fn post_unlinked<const N: usize>(&self, list: &mut SendList<N>, from: usize) -> c_int {
        list.link();
        match list.linked(from) {
            // SAFETY: The chain is linked and ends, and none of its requests is inline.
            Some(start) => unsafe { self.post_chain(start) },
            None => self.post_copies(list.wrs_from(from)),
        }
    }

    /// Posts copies of requests, linked as a driver expects. If a request is refused, `self.bad` names
    /// the original in `wrs`.
    #[inline(never)]
    fn post_copies(&self, wrs: &[SendWr]) -> c_int {
        // The CPU reads inline data at any address that a request names. So the address must lie in a
        // registered region, which the guard keeps registered until the post.
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
            // SAFETY: The chain is linked and ends, and every inline request lies in a registered
            // region.
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

    /// Posts a linked chain and returns the driver's code, 0 for success.
    ///
    /// # Safety
    /// The chain ends, and inline data stays readable during the call.
    #[inline(always)]
    unsafe fn post_chain(&self, start: *mut SendWr) -> c_int {
        // SAFETY: The queue pair exists, and the chain ends. The driver copies what it needs before it
        // returns. It reads only the fields of our operations, all of which a `SendWr` has. Requests
        // name buffers by key, and the device checks the keys.
        unsafe { (self.post_send)(self.raw(), start.cast(), self.bad.as_ptr().cast()) }
    }

    /// Records the refused request, as a driver does.
    fn refuse(&self, wr: Option<&SendWr>) {
        self.bad.set(wr.map_or(ptr::null_mut(), |wr| ptr::from_ref(wr).cast_mut().cast()));
    }

    /// Returns the index of the refused request. If the driver did not name one, it refused the first.
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
        let rc = match wr.sge.length {
            0 => self.post_one_recv(ptr::from_ref(wr).cast_mut().cast()),
            _ => self.post_recv_into(wr),
        };
        if rc == 0 { Ok(()) } else { Err(self.recv_error(rc)) }
    }

    /// Posts a receive without a buffer; the driver takes `wr` without a copy.
    #[inline(always)]
    pub(super) fn post_empty_recv(&self, wr: &RecvWr) -> Result<(), Refused> {
        let rc = self.post_one_recv(ptr::from_ref(wr).cast_mut().cast());
        if rc == 0 { Ok(()) } else { Err(Refused { errno: rc }) }
    }

    #[cold]
    #[inline(never)]
    fn recv_error(&self, rc: c_int) -> NicError {
        self.with_state(errno::of(Verb::PostRecv, rc))
    }

    /// Posts a receive that has a buffer.
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
        // SAFETY: The queue pair exists, and the chain is one valid request, which the driver copies
        // before it returns.
        unsafe { (self.post_recv)(self.raw(), wr, self.bad_recv.as_ptr().cast()) }
    }
}

#[inline(always)]
fn is_inline(wr: &SendWr) -> bool {
    wr.flags.contains(SendFlags::INLINE)
}

impl Cq {
    /// Polls the completion queue. The driver writes core's completions directly, because their layout
    /// is that of `ibv_wc`.
    #[inline(always)]
    pub(super) fn poll(&self, wcs: &mut [Wc]) -> Result<u32, PollError> {
        let room = c_int::try_from(wcs.len()).unwrap_or(c_int::MAX);
        // SAFETY: The queue exists, and `wcs` has room for `room` completions. Any bit pattern is a
        // valid `Wc`.
        let rc = unsafe { (self.poll_cq)(self.raw.as_ptr(), room, wcs.as_mut_ptr().cast()) };
        match rc {
            0 => Ok(0),
            1 => Ok(1),
            2.. => Ok(rc as u32),
            _ => Err(PollError { errno: libc::EIO as u16 }),
        }
    }
}
