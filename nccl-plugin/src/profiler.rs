//! Events for NCCL's profiler plugins: when a message starts and stops, on each queue pair or on
//! the socket that announces it (NCCL's `net_ib_v1.h` and `net_socket_v1.h`, since v10).
//!
//! Only transfers for which NCCL names a step have events. Their requests bear a mark, so that all
//! others pay for a look at one bit.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use invar::raw;

use crate::abi::{Code, Description, ProfilerCallback, QpWork, SocketWork};
use crate::comm::Kind;
use crate::place;

/// Set in a request that has events: no comm is found by it.
const MARK: usize = 1;

/// `ncclProfilerNetEventStart`.
const START: c_int = 0;
/// `ncclProfilerNetEventStop`.
const STOP: c_int = 1;
/// `NCCL_PROFILER_NET_TYPE_IB`, and the version of what is described.
const IB_V1: i64 = 1 << 16 | 1;
/// `NCCL_PROFILER_NET_TYPE_SOCK`, likewise.
const SOCKET_V1: i64 = 2 << 16 | 1;
/// `ncclProfileQp` and `ncclProfileSocket`, the first and only kind of each.
const FIRST_KIND: u8 = 1;

/// What NCCL gave last; null for none.
static CALLBACK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Events that have started, by request.
static EVENTS: Mutex<Option<HashMap<usize, Vec<Event>>>> = Mutex::new(None);

/// The profiler's handle of an event.
struct Event(*mut c_void);

// SAFETY: only handed back.
unsafe impl Send for Event {}

/// A message that a profiler is told of.
pub(crate) struct Message {
    /// NCCL's handle of the step that it is part of; without one there are no events.
    pub(crate) step: *mut c_void,
    /// Bytes.
    pub(crate) length: usize,
}

/// What messages go over.
pub(crate) struct Lanes {
    /// Which way they go.
    pub(crate) kind: Kind,
    /// Number of the device.
    pub(crate) device: c_int,
    /// Queue pairs, or sockets.
    pub(crate) over: raw::Lanes,
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
    let Lanes { kind, device, ref over } = *lanes;
    let (opcode, op) = match kind {
        Kind::Send => (1, 0),
        Kind::Recv => (129, 1),
    };
    let mut started = Vec::new();
    for Message { step, length } in messages.into_iter().filter(|message| !message.step.is_null()) {
        match over {
            raw::Lanes::QueuePairs(qpns) => started.extend(qpns.iter().filter_map(|qpn| {
                let (wr_id, qp_num) = (request.addr() as u64, *qpn as c_int);
                let length = length / qpns.len();
                let queue_pair = QpWork { device, wr_id, opcode, qp_num, length };
                start_one(callback, step, IB_V1, queue_pair)
            })),
            raw::Lanes::Sockets(fd) => {
                let socket = SocketWork { fd: *fd, op, length };
                started.extend(start_one(callback, step, SOCKET_V1, socket));
            }
            _ => {}
        }
    }
    if started.is_empty() {
        return request;
    }
    let marked = request.map_addr(|request| request | MARK);
    events().get_or_insert_default().insert(marked.addr(), started);
    marked
}

/// Starts an event; `None` where the profiler takes none.
fn start_one<T>(callback: ProfilerCallback, step: *mut c_void, id: i64, about: T) -> Option<Event> {
    let mut description = Description { kind: FIRST_KIND, about };
    let (mut event, description) = (ptr::null_mut(), &raw mut description);
    // SAFETY: NCCL's contract; the profiler copies the description, which is of that id.
    let code = unsafe { callback(&mut event, START, step, id, description.cast()) };
    (code == Code::SUCCESS).then_some(Event(event))
}

/// Whether a request has events.
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
        let is_its = |marked| place::comm(unmarked(ptr::without_provenance_mut(marked))) == comm;
        events.retain(|marked, _| !is_its(*marked));
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
