//! What the verbs give out. Each handle keeps what it was made of, so that everything is
//! released once and in the order that libibverbs demands: queue pairs before their completion
//! queue, regions before their protection domain, all before the device.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use invar_core::nic::{Access, Memory, MemoryKeys, NicError, QpCap, Sge, Verb};
use invar_linux::memory::HostMemory;
use rustc_hash::FxHashMap;

use crate::context::{Context, Opened};
use crate::events::Fate;
use crate::library::Library;
use crate::sys::*;
use crate::{errno, memlock};

/// A protection domain; clones are the same one.
#[derive(Clone)]
pub struct Pd(pub(super) Arc<PdInner>);

pub(super) struct PdInner {
    raw: NonNull<ibv_pd>,
    /// Addresses of registered host memory, by lkey: what the CPU may read for work that is posted
    /// inline.
    ranges: RwLock<FxHashMap<u32, Range<u64>>>,
    pub(super) context: Arc<Context>,
}

// SAFETY: libibverbs takes calls about an object from any thread, and from several at once.
unsafe impl Send for PdInner {}
// SAFETY: as above.
unsafe impl Sync for PdInner {}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Pd, NicError> {
        // SAFETY: an open context.
        let raw = unsafe { (context.library().alloc_pd)(context.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| errno::last(Verb::AllocPd))?;
        let (ranges, context) = (RwLock::default(), Arc::clone(context));
        Ok(Pd(Arc::new(PdInner { raw, ranges, context })))
    }
}

impl PdInner {
    /// Keeps everything registered that is, while it is looked at.
    pub(super) fn ranges(&self) -> Ranges<'_> {
        Ranges(self.ranges.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The registered ranges of host memory, which stay so as long as this lives.
pub(super) struct Ranges<'a>(RwLockReadGuard<'a, FxHashMap<u32, Range<u64>>>);

impl Ranges<'_> {
    /// Whether the bytes lie in the range that their key names.
    pub(super) fn cover(&self, sge: &Sge) -> bool {
        let Some(end) = sge.addr.checked_add(sge.length.into()) else { return false };
        let range = self.0.get(&sge.lkey);
        sge.length == 0 || range.is_some_and(|range| range.start <= sge.addr && end <= range.end)
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // SAFETY: allocated, and released once; what was made of it held it and is gone.
        let rc = unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
        note(&self.context, "ibv_dealloc_pd", rc);
    }
}

/// A registered region.
pub struct Mr {
    raw: NonNull<ibv_mr>,
    lkey: u32,
    rkey: u32,
    /// Where its memory is the host's.
    memory: ManuallyDrop<Option<HostMemory>>,
    pd: Pd,
}

// SAFETY: as `PdInner`.
unsafe impl Send for Mr {}
// SAFETY: as `PdInner`.
unsafe impl Sync for Mr {}

impl Mr {
    pub(super) fn register(pd: &Pd, memory: &HostMemory, access: Access) -> Result<Mr, NicError> {
        let len = memory.len();
        // SAFETY: `memory` is mapped as long as it lives, which is until the region is gone.
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
    /// As of [`VerbsNic::reg_foreign_mr`](super::VerbsNic::reg_foreign_mr).
    pub(super) unsafe fn of_foreign(
        pd: &Pd,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<Mr, NicError> {
        // SAFETY: the caller's promise.
        let mr = unsafe { reg_mr(pd, addr, len, access) };
        Mr::new(mr, Verb::RegMr, pd, None)
            .map_err(|error| error.with("bytes", len as u64).with("address", addr))
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

    /// What a registration gave; null is an error.
    fn new(
        raw: *mut ibv_mr,
        verb: Verb,
        pd: &Pd,
        memory: Option<HostMemory>,
    ) -> Result<Mr, NicError> {
        let raw = NonNull::new(raw).ok_or_else(|| errno::last(verb))?;
        // SAFETY: a region that was just registered.
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
        // SAFETY: registered, and released once.
        let rc = unsafe { (context.library().dereg_mr)(self.raw.as_ptr()) };
        note(context, "ibv_dereg_mr", rc);
        if rc == 0 {
            // SAFETY: dropped once; the device does not reach it any more. Where that is not
            // sure the memory stays as it is for ever.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

/// Null, and `errno`, where it fails.
///
/// # Safety
/// The memory stays until the region is gone.
unsafe fn reg_mr(pd: &Pd, addr: u64, len: usize, access: Access) -> *mut ibv_mr {
    let PdInner { raw, context, .. } = &*pd.0;
    let start = ptr::with_exposed_provenance_mut(addr as usize);
    let plain = access - Access::RELAXED_ORDERING;
    // SAFETY: a domain that is there, and the caller's promise.
    unsafe {
        match context.library().reg_mr_iova2 {
            Some(reg_mr_iova2) if access != plain => {
                reg_mr_iova2(raw.as_ptr(), start, len, addr, access.bits())
            }
            _ => (context.library().reg_mr)(raw.as_ptr(), start, len, plain.bits() as c_int),
        }
    }
}

/// Null, and `errno`, where it fails.
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
        // SAFETY: this thread's own `errno`.
        unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
        return ptr::null_mut();
    };
    // SAFETY: a domain that is there; what the descriptor is the kernel finds out, and it holds
    // the memory behind it.
    unsafe { reg_dmabuf_mr(raw.as_ptr(), offset, len, iova, fd, access.bits() as c_int) }
}

pub(super) fn has_dmabuf(pd: &Pd) -> bool {
    let mr = reg_dmabuf_mr(pd, 0, 0, 0, -1, Access::empty());
    let error = io::Error::last_os_error().raw_os_error();
    // A region, which cannot be, is released at once.
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
    context: Arc<Context>,
}

// SAFETY: as `PdInner`.
unsafe impl Send for CqInner {}
// SAFETY: as `PdInner`.
unsafe impl Sync for CqInner {}
// SAFETY: as `PdInner`.
unsafe impl Send for Cq {}
// SAFETY: as `PdInner`.
unsafe impl Sync for Cq {}

impl Cq {
    pub(super) fn create(context: &Arc<Context>, depth: usize) -> Result<Cq, NicError> {
        // SAFETY: an open context.
        let poll_cq = unsafe { (*context.raw()).ops.poll_cq };
        let poll_cq = poll_cq.ok_or_else(|| lacks(Verb::CreateCq))?;
        let mut fate = Box::<Fate>::default();
        let note: *mut Fate = &mut *fate;
        let cqe = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: an open context; the note stays where it is until the queue is destroyed.
        let raw = unsafe {
            (context.library().create_cq)(context.raw(), cqe, note.cast(), ptr::null_mut(), 0)
        };
        let raw = NonNull::new(raw)
            .ok_or_else(|| errno::last(Verb::CreateCq).with("depth", depth as u64))?;
        let inner = Arc::new(CqInner { raw, fate, context: Arc::clone(context) });
        Ok(Cq { raw, poll_cq, inner })
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.inner.context
    }
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // SAFETY: created, and destroyed once; the queue pairs on it held it and are gone.
        let rc = unsafe { (self.context.library().destroy_cq)(self.raw.as_ptr()) };
        note(&self.context, "ibv_destroy_cq", rc);
    }
}

/// A queue pair.
pub struct Qp {
    pub(super) raw: NonNull<ibv_qp>,
    pub(super) post_send: PostSend,
    pub(super) post_recv: PostRecv,
    /// Where a driver says which request it refuses, null before. Here, so that no call needs room
    /// for it.
    pub(super) bad: Cell<*mut c_void>,
    /// The same of receives, which nobody asks for.
    pub(super) bad_recv: Cell<*mut c_void>,
    qp_num: u32,
    fate: Box<Fate>,
    cq: Arc<CqInner>,
    pub(super) pd: Arc<PdInner>,
}

// SAFETY: as `PdInner`; what is of one call at a time makes it no `Sync`.
unsafe impl Send for Qp {}

impl Qp {
    pub(super) fn create(pd: &Pd, cq: &Cq, cap: &QpCap) -> Result<Qp, NicError> {
        let context = &pd.0.context;
        // SAFETY: an open context.
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
        // SAFETY: a domain and a queue that are there, of one device; the note stays where it is
        // until the queue pair is destroyed.
        let raw = unsafe { (context.library().create_qp)(pd.0.raw.as_ptr(), &mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            errno::last(Verb::CreateQp)
                .with("max_send_wr", cap.max_send_wr)
                .with("max_recv_wr", cap.max_recv_wr)
                .with("max_inline_data", cap.max_inline_data)
        })?;
        // SAFETY: a queue pair that was just created.
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

    /// The event that ended it, if one has; and the one that ended its completion queue.
    pub(super) fn fates(&self) -> [&Fate; 2] {
        [&self.fate, &self.cq.fate]
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: created, and destroyed once. It waits until its events are acknowledged.
        let rc = unsafe { (self.library().destroy_qp)(self.raw()) };
        note(&self.pd.context, "ibv_destroy_qp", rc);
    }
}

/// A driver without a function of the data path.
fn lacks(verb: Verb) -> NicError {
    NicError::new(verb, libc::EOPNOTSUPP, "the driver has no post_send, post_recv or poll_cq")
}

/// Logs what a release says: nobody can do anything about it.
fn note(context: &Context, verb: &str, rc: c_int) {
    if rc != 0 {
        let error = io::Error::from_raw_os_error(rc.abs());
        log::warn!("{}: {verb}: {error}", context.opened().name());
    }
}
