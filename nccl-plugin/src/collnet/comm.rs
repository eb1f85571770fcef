//! Collective comms.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use invar::communicator::RawOperation;
use invar::{Communicator, Hub, Settings};

use super::memory::{self, MemoryRange};
use super::request::{CollRequest, Progress, Shared, wait_until};
use crate::outcome::{Failed, Outcome, failed, misused};
use crate::registry::{Number, Registry};

/// Most requests of a comm that are not done; with more, a call writes a null request, and NCCL repeats
/// it. NCCL itself has at most 32 (`NCCL_NET_MAX_REQUESTS`).
const REQUESTS_MAX: usize = 64;

/// Time in which the collectives of a registration must leave its memory alone.
const END_WITHIN: Duration = Duration::from_secs(10);

static COMMS: Registry<CollComm> = Registry::new(4);
static REQUESTS: Registry<CollRequest> = Registry::new(5);

/// A collective comm. Its fields end in this order.
pub(super) struct CollComm {
    /// The communicator ends its collectives, so nobody uses their memory afterwards.
    communicator: Communicator,
    shared: Arc<Shared>,
    /// The requests that have not started, in order: all ranks start their collectives in one order.
    waiting: Mutex<VecDeque<Arc<CollRequest>>>,
    /// Removes what NCCL did not end: its requests, then its registrations.
    _entries: CommEntries,
    /// The hub, on rank 0. The ranks tell each other there that they are done, so it ends last.
    _hub: Option<Hub>,
}

/// The requests and the registrations of a comm. They end on drop, and so do copies from and to their memory.
struct CommEntries {
    comm: Number,
    shared: Arc<Shared>,
}

impl Drop for CommEntries {
    fn drop(&mut self) {
        REQUESTS.remove_all(|request| request.comm == self.comm);
        self.shared.copies.finish();
        memory::forget(self.comm);
    }
}

impl CollComm {
    /// Stores a comm and returns its number.
    pub(super) fn put(communicator: Communicator, hub: Option<Hub>, settings: Settings) -> Number {
        let (shared, waiting) = (Arc::new(Shared::new(settings)), Mutex::default());
        COMMS.put(|number| {
            let _entries = CommEntries { comm: number, shared: Arc::clone(&shared) };
            Arc::new(CollComm { communicator, shared, waiting, _entries, _hub: hub })
        })
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
        if closed.shared.pending.load(Ordering::Acquire) > 0 {
            closed.communicator.abort("collNet's comm is closed with collectives in progress");
        }
        let closed = Arc::into_inner(closed).ok_or_else(|| {
            misused("closeColl during another call on the comm, which ends with that call")
        })?;
        drop(closed);
        Ok(())
    }

    /// Ends a registration. If a collective that uses the memory still needs the other ranks, they hear that this
    /// rank gives it up. The call returns once nobody uses the memory.
    pub(super) fn deregister(&self, number: Number, mhandle: *mut c_void) -> Outcome {
        let registration = memory::find(number, mhandle)?;
        let users = REQUESTS.all(|request| request.comm == number && request.uses(registration));
        if users.iter().any(|request| request.needs_ranks()) {
            self.communicator
                .abort("collNet's memory is deregistered with a collective in progress");
        }
        let deadline = Instant::now() + END_WITHIN;
        let have_ended = users.iter().all(|request| request.end(&self.communicator, deadline));
        // A call that failed may have left a copy in progress.
        if !have_ended || !wait_until(deadline, || self.shared.copies.is_idle()) {
            return Err(misused(format_args!(
                "deregMr: after {END_WITHIN:?} a collective still uses the memory of {mhandle:p}: close the comm \
                 before the memory is freed"
            )));
        }
        memory::deregister(registration);
        Ok(())
    }

    /// Number of this rank, and number of ranks.
    pub(super) fn rank(&self) -> (u32, u32) {
        (self.communicator.rank(), self.communicator.nranks())
    }

    /// Starts a collective from the parts of its input to the parts of its output. `build` makes its
    /// operations from the addresses of both, and `bytes` is the length of the output. Returns `None` if
    /// the comm has to complete other collectives first. If the collective fails, all ranks hear of it.
    ///
    /// # Safety
    /// The operations are as [`Communicator::post`] demands. NCCL leaves their memory to them until the
    /// request is done.
    pub(super) unsafe fn start(
        &self,
        number: Number,
        memory: (&[MemoryRange], &[MemoryRange]),
        bytes: usize,
        build: impl FnOnce(*const u8, *mut u8) -> Vec<RawOperation>,
    ) -> Result<Option<Number>, Failed> {
        // SAFETY: The caller has made the same promises.
        let started = unsafe { self.try_start(number, memory, bytes, build) };
        // The other ranks start the collective, and must not wait for this one.
        started.inspect_err(|_| {
            self.communicator.abort("a collective cannot start; the log of this rank says why")
        })
    }

    /// # Safety
    /// The caller makes the promises of [`start`](Self::start).
    unsafe fn try_start(
        &self,
        number: Number,
        memory: (&[MemoryRange], &[MemoryRange]),
        bytes: usize,
        build: impl FnOnce(*const u8, *mut u8) -> Vec<RawOperation>,
    ) -> Result<Option<Number>, Failed> {
        let pending = self.shared.pending.load(Ordering::Acquire);
        if pending >= REQUESTS_MAX {
            self.communicator.check().map_err(|error| failed(&error))?;
            return Ok(None);
        }
        // SAFETY: The caller has promised the memory.
        let Some(mut staging) = (unsafe { self.shared.copies.stage(memory, build) })? else {
            if pending == 0 {
                self.shared.copies.lack(memory)?;
            }
            self.communicator.check().map_err(|error| failed(&error))?;
            return Ok(None);
        };
        let mut waiting = self.waiting();
        let starts = waiting.is_empty() && staging.is_fetched().map_err(|error| failed(&error))?;
        let posted = match starts {
            // SAFETY: The caller has promised what `post` demands, and the request keeps the memory.
            true => Some(unsafe { staging.post(&self.communicator) }),
            false => None,
        };
        let posted = posted.transpose().map_err(|error| failed(&error))?;
        if !starts {
            self.communicator.check().map_err(|error| failed(&error))?;
        }
        let parts = memory.0.iter().chain(memory.1);
        let used = parts.filter_map(|part| part.registration).collect();
        let request = CollRequest::new(number, bytes, &self.shared, used, (posted, staging));
        let request = Arc::new(request);
        if !starts {
            waiting.push_back(Arc::clone(&request));
        }
        Ok(Some(REQUESTS.put(|_| request)))
    }

    /// Starts the collectives whose input is in host memory, in order.
    fn start_waiting(&self) {
        let mut waiting = self.waiting();
        while waiting.front().is_some_and(|first| first.start(&self.communicator)) {
            waiting.pop_front();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<CollRequest>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves a request. Returns the length of its output if it is done.
pub(super) fn test(request: *mut c_void) -> Result<Option<usize>, Failed> {
    let number = Number::from_ptr(request);
    let found = REQUESTS.get(number).ok_or_else(|| {
        misused(format_args!("test: {request:p} is no request that is in progress"))
    })?;
    match found.advance() {
        Ok(Progress::Waiting) => {
            if let Some(comm) = COMMS.get(found.comm) {
                comm.start_waiting();
            }
            Ok(None)
        }
        Ok(Progress::Moving) => Ok(None),
        Ok(Progress::Done) => {
            REQUESTS.remove(number);
            Ok(Some(found.bytes))
        }
        Ok(Progress::Over(code)) => Err(Failed(code)),
        Err(error) => {
            // The other ranks must not wait for this one.
            if let Some(comm) = COMMS.get(found.comm) {
                comm.communicator.abort(&error.to_string());
            }
            Err(failed(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use invar::communicator::Operation;
    use invar::{DataType, PortRange, RedOp};

    use super::*;
    use crate::abi::PTR_HOST;

    /// Makes a comm of one rank.
    fn alone() -> Number {
        let (at, within) = ((Ipv4Addr::LOCALHOST, 0).into(), Duration::from_secs(30));
        let hub = Hub::listen(at, PortRange::ANY, 1, None, within).unwrap();
        let settings = Settings::default();
        let communicator = Communicator::join(&hub.id(), 0, 1, &settings).unwrap();
        CollComm::put(communicator, Some(hub), settings)
    }

    #[test]
    fn a_comm_that_is_closed_during_another_call_ends_with_that_call() {
        let number = alone();
        let (_, in_call) = CollComm::find("test", number.to_ptr()).ok().unwrap();
        let mut data = [1_u8; 64];
        let at = data.as_mut_ptr().cast::<c_void>();
        let mr = memory::register(number, at.addr(), 64, PTR_HOST).ok().unwrap();
        let nothing = |input, output| {
            let (operation, redop) = (Operation::AllReduce, Some(RedOp::Sum));
            vec![RawOperation {
                operation,
                count: 0,
                data_type: DataType::U8,
                redop,
                input,
                output,
            }]
        };
        // SAFETY: The collective has no elements.
        let request = unsafe { in_call.start(number, (&[], &[]), 0, nothing) }.ok().unwrap();
        let locate = || memory::locate(("test", "memory"), number, mr.to_ptr(), at, 64).is_ok();
        let has_request = || REQUESTS.get(request.unwrap()).is_some();
        assert!(CollComm::close(number.to_ptr()).is_err());
        assert_eq!((locate(), has_request()), (true, true));
        drop(in_call);
        assert_eq!((locate(), has_request()), (false, false));
        assert!(CollComm::find("test", number.to_ptr()).is_err());
    }
}
