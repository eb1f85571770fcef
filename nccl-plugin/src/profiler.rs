//! Events for NCCL's profiler plugins: when a message starts and stops on each queue pair
//! (NCCL's `net_ib_v1.h`, since v10).
//!
//! Only transfers for which NCCL names a step have events. Their requests bear a mark, so that all
//! others pay for a look at one bit.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use static_assertions::const_assert_eq;

use crate::abi::{Code, ProfilerCallback};

/// Set in a request that has events; no token uses it.
const MARK: usize = 1 << 31;

/// `ncclProfilerNetEventStart`.
const START: c_int = 0;
/// `ncclProfilerNetEventStop`.
const STOP: c_int = 1;
/// `NCCL_PROFILER_NET_TYPE_IB`, and the version of what is described.
const IB_V1: i64 = 1 << 16 | 1;
/// `IBV_WR_RDMA_WRITE_WITH_IMM`.
pub(crate) const WRITE_WITH_IMM: c_int = 1;
/// `IBV_WC_RECV_RDMA_WITH_IMM`.
pub(crate) const RECV_RDMA_WITH_IMM: c_int = 129;
/// `ncclProfileQp`.
const QUEUE_PAIR: u8 = 1;

/// What NCCL gave last; null for none.
static CALLBACK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Events that have started, by request.
static EVENTS: Mutex<Option<HashMap<usize, Vec<Event>>>> = Mutex::new(None);

/// The profiler's handle of an event.
struct Event(*mut c_void);

// SAFETY: only handed back.
unsafe impl Send for Event {}

/// `ncclProfilerNetIbDescr_v1_t`.
#[derive(Debug)]
#[repr(C)]
struct Description {
    kind: u8,
    qp: QueuePair,
}

/// The one thing that it can be about.
#[derive(Debug)]
#[repr(C)]
struct QueuePair {
    device: c_int,
    wr_id: u64,
    opcode: c_int,
    qp_num: c_int,
    length: usize,
}

const_assert_eq!(size_of::<Description>(), 40);
const_assert_eq!(std::mem::offset_of!(Description, qp.device), 8);

/// A message that a profiler is told of.
pub(crate) struct Message {
    /// NCCL's handle of the step that it is part of; without one there are no events.
    pub(crate) step: *mut c_void,
    /// Bytes.
    pub(crate) length: usize,
}

/// What messages go over.
pub(crate) struct Lanes {
    /// Number of the device.
    pub(crate) device: c_int,
    /// The verbs' code of what moves it.
    pub(crate) opcode: c_int,
    /// Queue pairs.
    pub(crate) qpns: Vec<u32>,
}

/// Calls `callback` from now on.
pub(crate) fn install(callback: Option<ProfilerCallback>) {
    let callback = callback.map_or(ptr::null_mut(), |callback| callback as *mut ());
    CALLBACK.store(callback, Ordering::Release);
}

/// Whether NCCL wants events.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    !CALLBACK.load(Ordering::Relaxed).is_null()
}

/// Starts the events of a request, one for each message on each lane, and gives the request that
/// NCCL is to have.
pub(crate) fn start(
    request: *mut c_void,
    messages: impl IntoIterator<Item = Message>,
    lanes: &Lanes,
) -> *mut c_void {
    let Some(callback) = callback() else { return request };
    let mut started = Vec::new();
    for Message { step, length } in messages.into_iter().filter(|message| !message.step.is_null()) {
        for qpn in &lanes.qpns {
            let qp = QueuePair {
                device: lanes.device,
                wr_id: request.addr() as u64,
                opcode: lanes.opcode,
                qp_num: *qpn as c_int,
                length: length / lanes.qpns.len(),
            };
            let mut description = Description { kind: QUEUE_PAIR, qp };
            let (mut event, description) = (ptr::null_mut(), &raw mut description);
            // SAFETY: NCCL's contract; the profiler copies the description.
            let code = unsafe { callback(&mut event, START, step, IB_V1, description.cast()) };
            if code == Code::SUCCESS {
                started.push(Event(event));
            }
        }
    }
    if started.is_empty() {
        return request;
    }
    let marked = request.map_addr(|request| request | MARK);
    events().get_or_insert_default().insert(marked.addr(), started);
    marked
}

/// Whether a request has events.
#[inline(always)]
pub(crate) fn is_marked(request: *mut c_void) -> bool {
    request.addr() & MARK != 0
}

/// A request without its mark.
pub(crate) fn unmarked(request: *mut c_void) -> *mut c_void {
    request.map_addr(|request| request & !MARK)
}

/// Stops the events of a request that is over.
pub(crate) fn stop(request: *mut c_void) {
    let stopped = events().as_mut().and_then(|events| events.remove(&request.addr()));
    let Some(callback) = callback() else { return };
    for Event(mut event) in stopped.into_iter().flatten() {
        // SAFETY: NCCL's contract; the handle is of an event that has started.
        unsafe { callback(&mut event, STOP, ptr::null_mut(), 0, ptr::null_mut()) };
    }
}

/// Forgets the events of a comm that is closed: NCCL has closed their steps.
pub(crate) fn forget(comm: *mut c_void) {
    if let Some(events) = &mut *events() {
        events.retain(|request, _| request >> 32 != comm.addr());
    }
}

fn callback() -> Option<ProfilerCallback> {
    let callback = CALLBACK.load(Ordering::Acquire);
    // SAFETY: it came from a function of this type, which NCCL keeps as long as the plugin.
    (!callback.is_null())
        .then(|| unsafe { std::mem::transmute::<*mut (), ProfilerCallback>(callback) })
}

fn events() -> MutexGuard<'static, Option<HashMap<usize, Vec<Event>>>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}
