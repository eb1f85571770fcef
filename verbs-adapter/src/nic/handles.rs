//! The objects of the verbs. Each handle keeps the objects that it depends on. So libibverbs releases
//! everything once and in the required order: queue pairs before their completion queue, regions before
//! their protection domain, all before the device.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use invar_core::nic::{Access, Memory, MemoryKeys, NicError, QpCap, Sge, Verb};
use invar_linux::memory::HostMemory;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::device::Opened;
use crate::events::Fate;
use crate::library::Library;
use crate::sys::*;
use crate::{errno, memlock};

use super::channel::Channel;

/// A protection domain; clones share the domain.
#[derive(Clone)]
pub struct Pd(pub(super) Arc<PdInner>);

pub(super) struct PdInner {
    raw: NonNull<ibv_pd>,
    /// Address ranges of registered host memory, by lkey: the memory that the CPU may read for inline
    /// work requests.
    ranges: RwLock<FxHashMap<u32, Range<u64>>>,
    pub(super) context: Arc<Context>,
}

// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Send for PdInner {}
// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Sync for PdInner {}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Pd, NicError> {
        // SAFETY: The context is open.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| errno::last(Verb::AllocPd))?;
        let (ranges, context) = (RwLock::default(), Arc::clone(context));
        Ok(Pd(Arc::new(PdInner { raw, ranges, context })))
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }
}

impl PdInner {
    /// Returns the registered ranges. No region is deregistered while the result lives.
    pub(super) fn ranges(&self) -> Ranges<'_> {
        Ranges(self.ranges.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The registered ranges of host memory, which stay registered as long as this value lives.
pub(super) struct Ranges<'a>(RwLockReadGuard<'a, FxHashMap<u32, Range<u64>>>);

impl Ranges<'_> {
    /// Whether the bytes lie in the range of their key.
    pub(super) fn cover(&self, sge: &Sge) -> bool {
        let Some(end) = sge.addr.checked_add(sge.length.into()) else { return false };
        let range = self.0.get(&sge.lkey);
        sge.length == 0 || range.is_some_and(|range| range.start <= sge.addr && end <= range.end)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: The domain was allocated and is released once. All objects made from it held it and
        // are gone.
        let release = || unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
        self.context.release("ibv_dealloc_pd", release);
    }
}

/// A registered region.
pub struct Mr {
    raw: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    /// The registered memory, if it is host memory.
    memory: ManuallyDrop<Option<HostMemory>>,
    pd: Pd,
}

// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Send for Mr {}
// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Sync for Mr {}

impl Mr {
    pub(super) fn register(pd: &Pd, memory: &HostMemory, access: Access) -> Result<Mr, NicError> {
        let len = memory.len();
        // SAFETY: `memory` stays mapped as long as the handle holds it, which is until the region is
        // gone.
        let mr = unsafe { reg_mr(pd, memory.addr(), len, access) };
        let mr = Mr::new(mr, Verb::RegMr, pd, Some(memory.clone())).map_err(|error| {
            let error = error.with("bytes", len as u64);
            match memlock::limit_bytes() {
                Some(bytes) => error.with("memlock limit", bytes),
                None => error,
            }
        })?;
        let mut ranges = pd.0.ranges.write().unwrap_or_else(PoisonError::into_inner);
        ranges.insert(mr.lkey, memory.addr()..memory.addr() + len as u64);
        drop(ranges);
        Ok(mr)
    }

    /// # Safety
    /// The caller upholds the contract of [`VerbsNic::reg_foreign_mr`](super::VerbsNic::reg_foreign_mr).
    pub(super) unsafe fn of_foreign(
        pd: &Pd,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<Mr, NicError> {
        // SAFETY: The caller upholds this function's safety contract.
        let mr = unsafe { reg_mr(pd, addr, len, access) };
        Mr::new(mr, Verb::RegMr, pd, None).map_err(|mut error| {
            if error.errno == libc::EFAULT {
                error.cause = "no kernel module knows these pages: for GPU memory, is nvidia-peermem \
                               loaded, and for this driver?";
            }
            error.with("bytes", len as u64).with("address", addr)
        })
    }

    pub(super) fn of_dmabuf(
        pd: &Pd,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, NicError> {
        let mr = reg_dmabuf_mr(pd, offset, len, iova, dmabuf.as_raw_fd(), access);
        Mr::new(mr, Verb::RegDmabufMr, pd, None)
            .map_err(|error| error.with("bytes of a DMA-BUF", len as u64).with("offset", offset))
    }

    /// Makes the handle of a registration; a null `raw` is an error.
    fn new(
        raw: *mut ibv_mr,
        verb: Verb,
        pd: &Pd,
        memory: Option<HostMemory>,
    ) -> Result<Mr, NicError> {
        let raw = NonNull::new(raw).ok_or_else(|| errno::last(verb))?;
        // SAFETY: The registration just succeeded, so `raw` points to a region.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Ok(Mr { raw, lkey, rkey, memory: ManuallyDrop::new(memory), pd: pd.clone() })
    }
}

impl MemoryKeys for Mr {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.memory.is_some() {
            let mut ranges = self.pd.0.ranges.write().unwrap_or_else(PoisonError::into_inner);
            ranges.remove(&self.lkey);
        }
        let context = &self.pd.0.context;
        // SAFETY: The region was registered and is released once.
        let release = || unsafe { (context.library().dereg_mr)(self.raw.as_ptr()) };
        if context.release("ibv_dereg_mr", release) {
            // SAFETY: The memory is dropped once, and the device no longer reaches it. If deregistration
            // failed, the device may still reach the memory, so the handle leaks it.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Registers memory; on failure returns null and sets `errno`.
///
/// # Safety
/// The memory stays mapped until the region is gone.
unsafe fn reg_mr(pd: &Pd, addr: u64, len: usize, access: Access) -> *mut ibv_mr {
    let PdInner { raw, context, .. } = &*pd.0;
    let start = ptr::with_exposed_provenance_mut(addr as usize);
    let plain = access - Access::RELAXED_ORDERING;
    // SAFETY: The domain exists, and the caller promises that the memory stays.
    unsafe {
        match context.library().reg_mr_iova2 {
            Some(reg_mr_iova2) if access != plain => {
                reg_mr_iova2(raw.as_ptr(), start, len, addr, access.bits())
            }
            _ => (context.library().reg_mr)(raw.as_ptr(), start, len, plain.bits() as c_int),
        }
    }
}

/// Registers DMA-BUF memory; on failure returns null and sets `errno`.
fn reg_dmabuf_mr(
    pd: &Pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: Access,
) -> *mut ibv_mr {
    let PdInner { raw, context, .. } = &*pd.0;
    let Some(reg_dmabuf_mr) = context.library().reg_dmabuf_mr else {
        // SAFETY: The write goes to this thread's own `errno`.
        unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
        return ptr::null_mut();
    };
    // SAFETY: The domain exists. The kernel checks the descriptor and holds the memory behind it.
    unsafe { reg_dmabuf_mr(raw.as_ptr(), offset, len, iova, fd, access.bits() as c_int) }
}

pub(super) fn has_dmabuf(pd: &Pd) -> bool {
    let mr = reg_dmabuf_mr(pd, 0, 0, 0, -1, Access::empty());
    let error = io::Error::last_os_error().raw_os_error();
    // The registration cannot succeed; if it did, dropping the handle would release the region.
    let refused = Mr::new(mr, Verb::RegDmabufMr, pd, None).is_err();
    refused && !matches!(error, Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT))
}

/// A completion queue.
pub struct Cq {
    pub(super) raw: NonNull<ibv_cq>,
    pub(super) poll_cq: PollCq,
    inner: Arc<CqInner>,
}

struct CqInner {
    raw: NonNull<ibv_cq>,
    fate: Box<Fate>,
    /// Wakes a program that sleeps.
    channel: Option<Channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Send for CqInner {}
// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Sync for CqInner {}
// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Send for Cq {}
// SAFETY: libibverbs accepts calls on an object from any thread, and from several threads at once.
unsafe impl Sync for Cq {}

impl Cq {
    /// Creates a queue. A queue `with_channel` can be [armed](Cq::arm), if the device has completion events.
    pub(super) fn create(
        context: &Arc<Context>,
        depth: usize,
        with_channel: bool,
    ) -> Result<Cq, NicError> {
        // SAFETY: The context is open.
        let poll_cq = unsafe { (*context.raw()).ops.poll_cq };
        let poll_cq = poll_cq.ok_or_else(|| lacks(Verb::CreateCq))?;
        let mut fate = Box::<Fate>::default();
        let note: *mut Fate = &mut *fate;
        let cqe = c_int::try_from(depth).unwrap_or(c_int::MAX);
        let channel = if with_channel { Channel::create(context) } else { None };
        // SAFETY: The context is open.
        let vectors = unsafe { (*context.raw()).num_comp_vectors };
        let (events, vector) = match &channel {
            Some(channel) => (channel.raw(), next_vector(vectors)),
            None => (ptr::null_mut(), 0),
        };
        let create_cq = context.library().create_cq;
        // SAFETY: The context is open, and the boxed `Fate` keeps its address until the queue is
        // destroyed. So does the channel.
        let raw = unsafe { create_cq(context.raw(), cqe, note.cast(), events, vector) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| errno::last(Verb::CreateCq).with("depth", depth as u64))?;
        let inner = Arc::new(CqInner { raw, fate, channel, context: Arc::clone(context) });
        Ok(Cq { raw, poll_cq, inner })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }

    /// Lets the next completion make the returned descriptor readable. Returns `None` if the queue has no
    /// channel.
    pub(super) fn arm(&self) -> Option<c_int> {
        // SAFETY: The queue exists, and was created with this channel.
        self.inner.channel.as_ref().and_then(|channel| unsafe { channel.arm(self.raw) })
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: The queue was created and is destroyed once. All queue pairs on it held it and are
        // gone.
        let release = || unsafe { (self.context.library().destroy_cq)(self.raw.as_ptr()) };
        if !self.context.release("ibv_destroy_cq", release) {
            // The queue exists still: its events are noted here, and it uses its channel.
            mem::forget((mem::take(&mut self.fate), self.channel.take()));
        }
    }
}

/// Returns the completion vector of the next queue with a channel, of a device with `count` vectors. The queues of a
/// process take the vectors in turn, from one that depends on the process. So the interrupts of a host's connections
/// go to all processors that serve the device, and not to that of vector 0 alone.
fn next_vector(count: c_int) -> c_int {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let turn = process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let count = u32::try_from(count).unwrap_or(0).max(1);
    (turn % count) as c_int
}

/// A queue pair.
pub struct Qp {
    pub(super) raw: NonNull<ibv_qp>,
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
    /// The send request that a driver refuses, written by the driver; null otherwise. The field saves
    /// each call a stack slot.
    pub(super) bad: Cell<*mut c_void>,
    /// The receive request that a driver refuses, which nobody reads.
    pub(super) bad_recv: Cell<*mut c_void>,
    qp_num: u32,
    fate: Box<Fate>,
    cq: Arc<CqInner>,
    pub(super) pd: Arc<PdInner>,
}

// SAFETY: libibverbs accepts calls on an object from any thread. The cells serve one call at a time, so
// the type is not `Sync`.
unsafe impl Send for Qp {}

impl Qp {
    pub(super) fn create(pd: &Pd, cq: &Cq, cap: &QpCap) -> Result<Qp, NicError> {
        let context = &pd.0.context;
        // SAFETY: The context is open.
        let (post_send, post_recv) = unsafe {
            let ops = &(*context.raw()).ops;
            (ops.post_send, ops.post_recv)
        };
        let (Some(post_send), Some(post_recv)) = (post_send, post_recv) else {
            return Err(lacks(Verb::CreateQp));
        };
        let mut fate = Box::<Fate>::default();
        let note: *mut Fate = &mut *fate;
        let mut init = ibv_qp_init_attr {
            qp_context: note.cast(),
            send_cq: cq.raw.as_ptr(),
            recv_cq: cq.raw.as_ptr(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: cap.max_inline_data,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: The domain and the queue exist and belong to one device. The boxed `Fate` keeps its
        // address until the queue pair is destroyed.
        let raw = unsafe { (context.library().create_qp)(pd.raw(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            errno::last(Verb::CreateQp)
                .with("max_send_wr", cap.max_send_wr)
                .with("max_recv_wr", cap.max_recv_wr)
                .with("max_inline_data", cap.max_inline_data)
        })?;
        // SAFETY: The queue pair has just been created.
        let qp_num = unsafe { (*raw.as_ptr()).qp_num };
        let (cq, pd) = (Arc::clone(&cq.inner), Arc::clone(&pd.0));
        let [bad, bad_recv] = [const { Cell::new(ptr::null_mut()) }; 2];
        Ok(Qp { raw, post_send, post_recv, bad, bad_recv, qp_num, fate, cq, pd })
    }

    pub(super) fn raw(&self) -> *mut ibv_qp {
        self.raw.as_ptr()
    }

    pub(super) fn library(&self) -> &'static Library {
        self.pd.context.library()
    }

    pub(super) fn opened(&self) -> &Opened {
        self.pd.context.opened()
    }

    pub(super) fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// Returns the event that ended the queue pair, if any, and the event that ended its completion
    /// queue.
    pub(super) fn fates(&self) -> [&Fate; 2] {
        [&self.fate, &self.cq.fate]
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: The queue pair was created and is destroyed once. The call waits until its events are
        // acknowledged.
        let release = || unsafe { (self.library().destroy_qp)(self.raw()) };
        if !self.pd.context.release("ibv_destroy_qp", release) {
            // The queue pair exists still: its events are noted here.
            mem::forget(mem::take(&mut self.fate));
        }
    }
}

/// Makes the error for a driver that lacks a function of the data path.
fn lacks(verb: Verb) -> NicError {
    NicError::new(verb, libc::EOPNOTSUPP, "the driver has no post_send, post_recv or poll_cq")
}
