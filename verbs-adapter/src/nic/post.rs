//! The data path: core's requests are libibverbs' and go to the driver as they lie, through the
//! context's operations, as C's inline functions do.

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use invar_core::nic::{Link, NicError, PollError, RecvWr, SendFlags, SendWr, Sge, Verb, Wc};

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

/// A refusal, as small as a register, since every call may give one.
struct Refused {
    /// What the driver gave.
    rc: c_int,
    /// Which request of the list.
    index: u8,
    /// Or it was refused here.
    is_foreign: bool,
}

impl Qp {
    #[inline(always)]
    pub(super) fn post_send(&self, wrs: &mut [SendWr]) -> Result<(), NicError> {
        let posted = match wrs {
            [wr] if !is_inline(wr) => self.post_one(wr),
            _ => self.post_list(wrs),
        };
        posted.map_err(Refused::of_send)
    }

    #[inline(always)]
    fn post_one(&self, wr: &mut SendWr) -> Result<(), Refused> {
        let (start, mut bad) = (link(wr, Link::NULL), MaybeUninit::uninit());
        // SAFETY: as in `post_chain`.
        let rc = unsafe { (self.post_send)(self.raw(), start, bad.as_mut_ptr()) };
        if rc != 0 {
            return Err(Refused { rc, index: 0, is_foreign: false });
        }
        Ok(())
    }

    #[inline(never)]
    fn post_list(&self, wrs: &mut [SendWr]) -> Result<(), Refused> {
        let (mut next, mut flags) = (Link::NULL, SendFlags::empty());
        for wr in wrs.iter_mut().rev() {
            flags |= wr.flags;
            next = Link::to(link(wr, next));
        }
        if flags.contains(SendFlags::INLINE) { self.post_inline(wrs) } else { self.post_chain(wrs) }
    }

    /// What is posted inline the CPU reads, whatever its address is: it must be a region's, until
    /// it is posted.
    #[inline(never)]
    fn post_inline(&self, wrs: &mut [SendWr]) -> Result<(), Refused> {
        let ranges = self.pd.ranges();
        let Some(at) = wrs.iter().position(|wr| is_inline(wr) && !ranges.cover(&wr.sge)) else {
            return self.post_chain(wrs);
        };
        let (good, _) = wrs.split_at_mut(at);
        if let Some(last) = good.last_mut() {
            last.next = Link::NULL;
        }
        self.post_chain(good)?;
        Err(Refused { rc: libc::EFAULT, index: index(at), is_foreign: true })
    }

    /// Posts requests that are linked. What is inline has been checked.
    #[inline(always)]
    fn post_chain(&self, wrs: &mut [SendWr]) -> Result<(), Refused> {
        if wrs.is_empty() {
            return Ok(());
        }
        let start: *mut ibv_send_wr = wrs.as_mut_ptr().cast();
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair that is there, and a chain of requests that ends. Drivers take what
        // they need of it before they return, and look only at the fields of our operations, which
        // a `SendWr` has. Buffers are named by key, which the device checks; inline ones are held.
        let rc = unsafe { (self.post_send)(self.raw(), start, &mut bad) };
        if rc == 0 {
            return Ok(());
        }
        // A driver that does not say which refused the first.
        let offset = if bad.is_null() { 0 } else { bad.addr().wrapping_sub(start.addr()) };
        Err(Refused { rc, index: index(offset / size_of::<SendWr>()), is_foreign: false })
    }

    #[inline(always)]
    pub(super) fn post_recv(&self, wr: &mut RecvWr) -> Result<(), NicError> {
        wr.next = Link::NULL;
        wr.num_sge = 0;
        if wr.sge.length > 0 {
            wr.sg_list = Link::to(&raw mut wr.sge);
            wr.num_sge = 1;
        }
        let (wr, mut bad) = (ptr::from_mut(wr).cast(), MaybeUninit::uninit());
        // SAFETY: as in `post_chain`.
        let rc = unsafe { (self.post_recv)(self.raw(), wr, bad.as_mut_ptr()) };
        if rc == 0 { Ok(()) } else { Err(errno::of(Verb::PostRecv, rc)) }
    }
}

impl Refused {
    #[cold]
    #[inline(never)]
    fn of_send(self) -> NicError {
        let Refused { rc, index, is_foreign } = self;
        let error = if is_foreign {
            NicError::new(Verb::PostSend, rc, "inline bytes that are in no registered memory")
        } else {
            errno::of(Verb::PostSend, rc)
        };
        NicError { index, ..error }
    }
}

fn index(at: usize) -> u8 {
    u8::try_from(at).unwrap_or(u8::MAX)
}

/// Links a request to its buffer and to the `next`; gives it as libibverbs takes it.
#[inline(always)]
fn link(wr: &mut SendWr, next: Link) -> *mut ibv_send_wr {
    wr.next = next;
    wr.sg_list = Link::to(&raw mut wr.sge);
    wr.num_sge = u32::from(wr.sge.length > 0);
    ptr::from_mut(wr).cast()
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
        if rc < 0 {
            return Err(PollError { errno: libc::EIO as u16 });
        }
        Ok(rc as u32)
    }
}
