//! Collective comms.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar::communicator::RawCollective;
use invar::{Communicator, Hub, Settings};

use super::memory::{self, MemoryRange};
use super::request::CollRequest;
use super::staging::{self, HostCopies};
use super::window::Bounce;
use crate::outcome::{Failed, Outcome, failed, misused};
use crate::registry::{Number, Registry};

/// Most requests of a comm that are not done; with more, a call writes a null request, and NCCL repeats
/// it. NCCL itself has at most 32 (`NCCL_NET_MAX_REQUESTS`).
const REQUESTS_MAX: usize = 64;

static COMMS: Registry<CollComm> = Registry::new(4);
static REQUESTS: Registry<CollRequest> = Registry::new(5);

/// A collective comm.
pub(super) struct CollComm {
    communicator: Communicator,
    /// The hub, on rank 0. The ranks tell each other there that they are done, so it ends last.
    hub: Option<Hub>,
    copies: HostCopies,
    /// Number of requests that are not done.
    pending: AtomicUsize,
    /// Requests that have not started, because input of theirs or of an earlier one is still on its way
    /// from a GPU. All ranks start their collectives in one order.
    waiting: Mutex<VecDeque<Arc<CollRequest>>>,
}

impl CollComm {
    /// Stores a comm and returns its number.
    pub(super) fn put(communicator: Communicator, hub: Option<Hub>, settings: Settings) -> Number {
        let (copies, pending) = (HostCopies::new(settings), AtomicUsize::new(0));
        let waiting = Mutex::default();
        COMMS.put(Arc::new(CollComm { communicator, hub, copies, pending, waiting }))
    }

    /// Finds a comm by NCCL's pointer.
    pub(super) fn find(function: &str, comm: *mut c_void) -> Result<(Number, Arc<Self>), Failed> {
        let number = Number::from_ptr(comm);
        let found = COMMS.get(number).map(|comm| (number, comm));
        found.ok_or_else(|| {
            misused(format_args!("{function}: {comm:p} is no collective comm that is open"))
        })
    }

    /// Closes a comm. If collectives are in progress, all ranks hear that this rank gives them up.
    pub(super) fn close(comm: *mut c_void) -> Outcome {
        let number = Number::from_ptr(comm);
        let closed = COMMS.remove(number).ok_or_else(|| {
            misused(format_args!("closeColl: {comm:p} is no collective comm that is open"))
        })?;
        if closed.pending.load(Ordering::Acquire) > 0 {
            closed.communicator.abort("collNet's comm is closed with collectives in progress");
        }
        closed.waiting().clear();
        let requests = REQUESTS.take_all(|request| request.comm == number);
        let closed = Arc::into_inner(closed)
            .ok_or_else(|| misused("closeColl during another call on the comm"))?;
        let CollComm { communicator, hub, .. } = closed;
        // The communicator ends its collectives, so nobody uses their memory afterwards. The rank leaves
        // with the last request.
        drop(communicator);
        drop(requests);
        memory::forget(number);
        staging::release();
        drop(hub);
        Ok(())
    }

    /// Number of this rank, and number of ranks.
    pub(super) fn rank(&self) -> (u32, u32) {
        (self.communicator.rank(), self.communicator.nranks())
    }

    /// Starts collectives from `input` to `output`, of `bytes` bytes of output. `build` makes them from
    /// the addresses of both. Returns `None` if too many are in progress, or too little memory is left
    /// for copies of GPU memory.
    ///
    /// # Safety
    /// The collectives are as [`Communicator::post`] demands. NCCL leaves their memory to them until the
    /// request is done. `bounce` may own memory.
    pub(super) unsafe fn start(
        &self,
        number: Number,
        (input, output): (&MemoryRange, &MemoryRange),
        bytes: usize,
        bounce: Option<Bounce>,
        build: impl FnOnce(*const u8, *mut u8) -> Vec<RawCollective>,
    ) -> Result<Option<Number>, Failed> {
        self.communicator.check().map_err(|error| failed(&error))?;
        let pending = self.pending.load(Ordering::Acquire);
        if pending >= REQUESTS_MAX {
            return Ok(None);
        }
        // SAFETY: The caller has promised what `stage` demands.
        let staged = unsafe { self.copies.stage(input, output, bounce, build) };
        let Some(staging) = staged.map_err(|error| failed(&error))? else {
            if pending > 0 {
                return Ok(None);
            }
            return Err(misused(
                "no pinned host memory is left for copies of GPU memory: set INVAR_STAGING_BYTES \
                 higher",
            ));
        };
        self.pending.fetch_add(1, Ordering::AcqRel);
        let request = Arc::new(CollRequest::new(number, bytes, staging));
        let mut waiting = self.waiting();
        waiting.push_back(Arc::clone(&request));
        self.start_waiting(&mut waiting);
        drop(waiting);
        Ok(Some(REQUESTS.put(request)))
    }

    /// Moves a request. Returns the length of its output if it is done.
    pub(super) fn test(request: *mut c_void) -> Result<Option<usize>, Failed> {
        let number = Number::from_ptr(request);
        let found = REQUESTS.get(number).and_then(|found| Some((COMMS.get(found.comm)?, found)));
        let (comm, request) = found.ok_or_else(|| {
            misused(format_args!("test: {request:p} is no request that is in progress"))
        })?;
        comm.start_waiting(&mut comm.waiting());
        let Some(staging) = request.advance(&comm.communicator)? else { return Ok(None) };
        REQUESTS.remove(number);
        comm.pending.fetch_sub(1, Ordering::AcqRel);
        staging::reuse(staging);
        Ok(Some(request.bytes))
    }

    /// Starts the collectives whose input is there, in order.
    fn start_waiting(&self, waiting: &mut VecDeque<Arc<CollRequest>>) {
        while waiting.front().is_some_and(|first| first.start(&self.communicator)) {
            waiting.pop_front();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<CollRequest>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
