//! Events for NCCL's profiler plugins: when a message starts and stops, on each queue pair or on
//! the socket that announces it (NCCL's `net_ib_v1.h` and `net_socket_v1.h`, since v10). A send starts
//! when it is posted: in a group with the last of that.
//!
//! Only transfers for which NCCL names a step have events. Their requests bear a mark, so that all
//! others pay for a look at one bit.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use invar::raw::{Carrier, Work};

use crate::abi::{Code, Description, ProfilerCallback, QpWork, SocketWork};
use crate::comm::{Comm, Kind};
use crate::handles;

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
/// `IBV_WC_RECV_RDMA_WITH_IMM`: receives have no opcode before they complete.
const RECV_RDMA_WITH_IMM: c_int = 129;
/// `ncclProfileQp` and `ncclProfileSocket`, the first and only kind of each.
const FIRST_KIND: u8 = 1;

/// What NCCL gave last; null for none.
static CALLBACK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

static TRANSFERS: Mutex<Transfers> = Mutex::new(Transfers { waiting: Vec::new(), started: None });

/// What is to have events, by marked request.
struct Transfers {
    /// Messages that are not posted yet.
    waiting: Vec<(usize, Vec<Message>)>,
    /// Events that have started.
    started: Option<HashMap<usize, Vec<Event>>>,
}

/// The profiler's handle of an event.
struct Event(*mut c_void);

/// A message that a profiler is told of.
pub(crate) struct Message {
    /// NCCL's handle of the step that it is part of; without one there are no events.
    pub(crate) step: *mut c_void,
    /// Bytes.
    pub(crate) length: usize,
}

// SAFETY: their pointers are only handed back.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Send for Message {}

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

/// Starts the events of a request of `comm`, for each message one on each queue pair, or one; gives
/// the request that NCCL is to have.
///
/// # Safety
/// There is no other call on the comm.
pub(crate) unsafe fn start(
    request: *mut c_void,
    messages: impl IntoIterator<Item = Message>,
    comm: &Comm,
) -> *mut c_void {
    let messages = messages.into_iter().filter(|message| !message.step.is_null()).collect();
    let marked = request.map_addr(|request| request | MARK);
    // SAFETY: the caller's promise.
    if unsafe { start_posted(marked, messages, comm) } { marked } else { request }
}

/// Starts the events of what was posted on a comm since, with the last of a group.
///
/// # Safety
/// As of [`start`].
pub(crate) unsafe fn go_on(number: *mut c_void, comm: &Comm) {
    let is_its = |(marked, _): &mut (usize, _)| comm_of(*marked) == number;
    let waiting: Vec<_> = transfers().waiting.extract_if(.., is_its).collect();
    for (marked, messages) in waiting {
        // SAFETY: the caller's promise.
        unsafe { start_posted(ptr::without_provenance_mut(marked), messages, comm) };
    }
}

/// Starts the events of a request, or has it wait until it is posted; `false` where it has none.
///
/// # Safety
/// As of [`start`].
unsafe fn start_posted(marked: *mut c_void, messages: Vec<Message>, comm: &Comm) -> bool {
    let Some(callback) = callback() else { return false };
    // SAFETY: the caller's promise.
    let Some(carriers) = (unsafe { comm.carriers(unmarked(marked)) }) else {
        transfers().waiting.push((marked.addr(), messages));
        return true;
    };
    let mut started = Vec::new();
    for Message { step, length } in messages {
        let start = |carrier: &Carrier| match *carrier {
            Carrier::Work(work) => {
                start_one(callback, step, IB_V1, queue_pair(comm.device_number(), &work))
            }
            Carrier::Socket(fd) => {
                let op = c_int::from(comm.kind() == Kind::Recv);
                start_one(callback, step, SOCKET_V1, SocketWork { fd, op, length })
            }
            _ => None,
        };
        started.extend(carriers.iter().filter_map(start));
    }
    let is_any = !started.is_empty();
    if is_any {
        transfers().started.get_or_insert_default().insert(marked.addr(), started);
    }
    is_any
}

fn queue_pair(device: c_int, work: &Work) -> QpWork {
    let opcode = work.opcode.map_or(RECV_RDMA_WITH_IMM, |opcode| opcode as c_int);
    let (wr_id, qp_num, length) = (work.wr_id, work.qpn as c_int, work.length as usize);
    QpWork { device, wr_id, opcode, qp_num, length }
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
    let stopped = {
        let Transfers { waiting, started } = &mut *transfers();
        waiting.retain(|(marked, _)| *marked != request.addr());
        started.as_mut().and_then(|started| started.remove(&request.addr()))
    };
    let Some(callback) = callback() else { return };
    for Event(mut event) in stopped.into_iter().flatten() {
        // SAFETY: NCCL's contract; the handle is of an event that has started.
        unsafe { callback(&mut event, STOP, ptr::null_mut(), 0, ptr::null_mut()) };
    }
}

/// Forgets the events of a comm that is closed: NCCL has closed their steps.
pub(crate) fn forget(comm: *mut c_void) {
    let Transfers { waiting, started } = &mut *transfers();
    waiting.retain(|(marked, _)| comm_of(*marked) != comm);
    if let Some(started) = started {
        started.retain(|marked, _| comm_of(*marked) != comm);
    }
}

/// The comm of a marked request.
fn comm_of(marked: usize) -> *mut c_void {
    handles::comm(unmarked(ptr::without_provenance_mut(marked)))
}

fn callback() -> Option<ProfilerCallback> {
    let callback = CALLBACK.load(Ordering::Acquire);
    // SAFETY: it came from a function of this type, which NCCL keeps as long as the plugin.
    (!callback.is_null())
        .then(|| unsafe { std::mem::transmute::<*mut (), ProfilerCallback>(callback) })
}

fn transfers() -> MutexGuard<'static, Transfers> {
    TRANSFERS.lock().unwrap_or_else(PoisonError::into_inner)
}
