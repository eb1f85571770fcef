//! Events for NCCL's profiler plugins: the start and stop of each message, on each queue pair or on the
//! socket that announces the message (NCCL's `net_ib_v1.h` and `net_socket_v1.h`, since v11). A send
//! starts when it is posted: sends of a group start when the last send of the group is posted.
//!
//! Only transfers for which NCCL names a step have events. NCCL names one for each transfer, with a profiler or without.
//! So a comm whose events nobody takes asks for one transfer in 64. Requests with events carry a mark, and all others
//! cost one bit test.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use invar::raw::{Carrier, Work};

use crate::abi::{Code, Description, ProfilerCallback, QpWork, SocketWork};
use crate::comm::{Comm, Kind};
use crate::request;

/// The bit that marks a request with events; no lookup finds a comm by a marked request.
const MARK: usize = 1;

/// `ncclProfilerNetEventStart`.
const START: c_int = 0;
/// `ncclProfilerNetEventStop`.
const STOP: c_int = 1;
/// `NCCL_PROFILER_NET_TYPE_IB` and the version of its description.
const IB_V1: i64 = 1 << 16 | 1;
/// `NCCL_PROFILER_NET_TYPE_SOCK` and the version of its description.
const SOCKET_V1: i64 = 2 << 16 | 1;
/// `IBV_WC_RECV_RDMA_WITH_IMM`, reported for a receive, which has no opcode before it completes.
const RECV_RDMA_WITH_IMM: c_int = 129;
/// `ncclProfileQp` and `ncclProfileSocket`, the only kind of their description.
const FIRST_KIND: u8 = 1;

/// The callback that NCCL passed last; null if NCCL passed none.
static CALLBACK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

static TRANSFERS: Mutex<Transfers> = Mutex::new(Transfers { waiting: Vec::new(), started: None });

/// Transfers with events, by marked request.
struct Transfers {
    /// Messages that are not posted yet.
    waiting: Vec<(usize, Vec<ProfiledMessage>)>,
    started: Option<HashMap<usize, Vec<Event>>>,
}

/// The profiler's handle of an event.
struct Event(*mut c_void);

/// A message with profiler events.
pub(crate) struct ProfiledMessage {
    /// NCCL's handle of the step that the message belongs to; a null step means no events.
    pub(crate) step: *mut c_void,
    /// Length of the message in bytes.
    pub(crate) length: usize,
}

// SAFETY: The plugin only passes the pointer back to NCCL and never reads through it.
unsafe impl Send for Event {}
// SAFETY: The plugin only passes the pointer back to NCCL and never reads through it.
unsafe impl Send for ProfiledMessage {}

/// Makes the plugin call `callback` for events from now on.
pub(crate) fn install(callback: Option<ProfilerCallback>) {
    let callback = callback.map_or(ptr::null_mut(), |callback| callback as *mut ());
    CALLBACK.store(callback, Ordering::Release);
}

/// Whether NCCL wants events.
#[inline(always)]
pub(crate) fn is_wanted() -> bool {
    !CALLBACK.load(Ordering::Relaxed).is_null()
}

/// Starts the events of a request of `comm`: for each message, one event on each queue pair, or one on
/// the socket. Returns the request that NCCL is to hold.
///
/// # Safety
/// No other call on the comm runs.
pub(crate) unsafe fn start(
    request: *mut c_void,
    messages: impl IntoIterator<Item = ProfiledMessage>,
    comm: &Comm,
) -> *mut c_void {
    let messages = messages.into_iter().filter(|message| !message.step.is_null()).collect();
    let marked = request.map_addr(|request| request | MARK);
    // SAFETY: The caller upholds this function's safety contract.
    if unsafe { start_posted(marked, messages, comm) } { marked } else { request }
}

/// Starts the events of messages that have been posted on a comm since the last call, as the last send
/// of a group posts the others.
///
/// # Safety
/// No other call on the comm runs.
pub(crate) unsafe fn go_on(number: *mut c_void, comm: &Comm) {
    let is_its = |(marked, _): &mut (usize, _)| comm_of(*marked) == number;
    let waiting: Vec<_> = transfers().waiting.extract_if(.., is_its).collect();
    for (marked, messages) in waiting {
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { start_posted(ptr::without_provenance_mut(marked), messages, comm) };
    }
}

/// Starts the events of a request, or keeps them waiting until the request is posted. Returns `false` if
/// the request has no events.
///
/// # Safety
/// No other call on the comm runs.
unsafe fn start_posted(marked: *mut c_void, messages: Vec<ProfiledMessage>, comm: &Comm) -> bool {
    let Some(callback) = callback() else { return false };
    // SAFETY: The caller upholds this function's safety contract.
    let Some(carriers) = (unsafe { comm.carriers(unmarked(marked)) }) else {
        transfers().waiting.push((marked.addr(), messages));
        return true;
    };
    let mut started = Vec::new();
    for ProfiledMessage { step, length } in messages {
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
        // If the profiler does not take the first event of a message, it takes none of them.
        started.extend(carriers.iter().map_while(start));
    }
    let is_any = !started.is_empty();
    match is_any {
        true => _ = transfers().started.get_or_insert_default().insert(marked.addr(), started),
        false => comm.note_unwatched(),
    }
    is_any
}

fn queue_pair(device: c_int, work: &Work) -> QpWork {
    let opcode = work.opcode.map_or(RECV_RDMA_WITH_IMM, |opcode| opcode as c_int);
    let (wr_id, qp_num, length) = (work.wr_id, work.qpn as c_int, work.length as usize);
    QpWork { device, wr_id, opcode, qp_num, length }
}

/// Starts an event; returns `None` if nobody takes the event. NCCL's callback then succeeds, and gives no
/// handle.
fn start_one<T>(callback: ProfilerCallback, step: *mut c_void, id: i64, about: T) -> Option<Event> {
    let mut description = Description { kind: FIRST_KIND, about };
    let (mut event, description) = (ptr::null_mut(), &raw mut description);
    // SAFETY: The arguments follow NCCL's contract: the profiler copies the description, whose type is
    // `id`.
    let code = unsafe { callback(&mut event, START, step, id, description.cast()) };
    (code == Code::SUCCESS && !event.is_null()).then_some(Event(event))
}

/// Whether a request has events.
pub(crate) fn is_marked(request: *mut c_void) -> bool {
    request.addr() & MARK != 0
}

/// Returns a request without its mark.
pub(crate) fn unmarked(request: *mut c_void) -> *mut c_void {
    request.map_addr(|request| request & !MARK)
}

/// Stops the events of a completed request.
pub(crate) fn stop(request: *mut c_void) {
    let stopped = {
        let Transfers { waiting, started } = &mut *transfers();
        waiting.retain(|(marked, _)| *marked != request.addr());
        started.as_mut().and_then(|started| started.remove(&request.addr()))
    };
    let Some(callback) = callback() else { return };
    for Event(mut event) in stopped.into_iter().flatten() {
        // SAFETY: The arguments follow NCCL's contract: the handle belongs to an event that has started.
        unsafe { callback(&mut event, STOP, ptr::null_mut(), 0, ptr::null_mut()) };
    }
}

/// Forgets the events of a closed comm, because NCCL has closed their steps.
pub(crate) fn forget(comm: *mut c_void) {
    let Transfers { waiting, started } = &mut *transfers();
    waiting.retain(|(marked, _)| comm_of(*marked) != comm);
    if let Some(started) = started {
        started.retain(|marked, _| comm_of(*marked) != comm);
    }
}

/// Returns the comm of a marked request.
fn comm_of(marked: usize) -> *mut c_void {
    request::comm(unmarked(ptr::without_provenance_mut(marked)))
}

fn callback() -> Option<ProfilerCallback> {
    let callback = CALLBACK.load(Ordering::Acquire);
    // SAFETY: `install` made the pointer from a `ProfilerCallback`, which NCCL keeps as long as the
    // plugin.
    (!callback.is_null())
        .then(|| unsafe { std::mem::transmute::<*mut (), ProfilerCallback>(callback) })
}

fn transfers() -> MutexGuard<'static, Transfers> {
    TRANSFERS.lock().unwrap_or_else(PoisonError::into_inner)
}
