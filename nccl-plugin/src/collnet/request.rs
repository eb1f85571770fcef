//! Requests: collectives from their call to the test that reports them.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use invar::communicator::Posted;
use invar::{Communicator, Error, Settings};

use super::staging::{HostCopies, Staging};
use crate::abi::Code;
use crate::outcome;
use crate::registry::Number;

/// Interval between two looks at copies that have to end.
const NAP: Duration = Duration::from_millis(1);

/// The part of a comm that its requests share.
pub(super) struct Shared {
    /// Number of requests that are not done.
    pub(super) pending: AtomicUsize,
    pub(super) copies: HostCopies,
}

/// A collective that is not done.
pub(super) struct CollRequest {
    /// The comm that the collective runs on.
    pub(super) comm: Number,
    /// Length of the output in bytes.
    pub(super) bytes: usize,
    /// The registrations that have its memory.
    used: Vec<Number>,
    shared: Arc<Shared>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// The memory of the collective. It outlives the collective, since a failed copy may still use it.
    staging: Staging,
}

enum Phase {
    /// The collective has not started: its input, or that of an earlier one, is not in host memory.
    Waiting,
    /// The ranks reduce.
    Reducing(Posted),
    /// The output is on its way to a GPU.
    Storing,
    /// The collective has failed, and no test has reported it.
    Failed(Error),
    /// A test has reported the collective. Another test returns this code.
    Over(Code),
}

impl State {
    /// Starts to bring the output of a reduction with this result to its place.
    fn store(&mut self, result: Result<(), Error>) {
        self.phase = match result.and_then(|()| self.staging.store()) {
            Ok(()) => Phase::Storing,
            Err(error) => Phase::Failed(error),
        };
    }
}

/// The state that a test finds.
pub(super) enum Progress {
    /// The comm has to start the collective.
    Waiting,
    /// The collective is in progress.
    Moving,
    /// The output is in its place.
    Done,
    /// The collective has been reported before, with this code.
    Over(Code),
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Self {
        Shared { pending: AtomicUsize::new(0), copies: HostCopies::new(settings) }
    }
}

impl CollRequest {
    /// Makes the request of a collective, which has started if it is posted. Counts it as pending.
    pub(super) fn new(
        comm: Number,
        bytes: usize,
        shared: &Arc<Shared>,
        used: Vec<Number>,
        (posted, staging): (Option<Posted>, Staging),
    ) -> Self {
        shared.pending.fetch_add(1, Ordering::AcqRel);
        let phase = posted.map_or(Phase::Waiting, Phase::Reducing);
        let state = Mutex::new(State { phase, staging });
        CollRequest { comm, bytes, used, shared: Arc::clone(shared), state }
    }

    /// Whether the memory of the collective is in this registration.
    pub(super) fn uses(&self, registration: Number) -> bool {
        self.used.contains(&registration)
    }

    /// Whether the collective still needs the other ranks.
    pub(super) fn needs_ranks(&self) -> bool {
        match &self.state().phase {
            Phase::Waiting => true,
            Phase::Reducing(posted) => !posted.is_done(),
            Phase::Storing | Phase::Failed(_) | Phase::Over(_) => false,
        }
    }

    /// Starts the collective if its input is in host memory. Returns whether the next one may start.
    pub(super) fn start(&self, communicator: &Communicator) -> bool {
        let mut state = self.state();
        let State { phase, staging } = &mut *state;
        if !matches!(phase, Phase::Waiting) {
            return true;
        }
        let posted = match staging.is_fetched() {
            Ok(false) => return false,
            // SAFETY: The caller of `CollComm::start` has made the promises of `post`.
            Ok(true) => unsafe { staging.post(communicator) },
            Err(error) => Err(error),
        };
        *phase = match posted {
            Ok(posted) => Phase::Reducing(posted),
            Err(error) => {
                // The other ranks start the collective, and must not wait for this one.
                communicator.abort(&error.to_string());
                Phase::Failed(error)
            }
        };
        true
    }

    /// Moves the collective, unless it waits. Returns the error of a collective once.
    pub(super) fn advance(&self) -> Result<Progress, Error> {
        let mut state = self.state();
        let state = &mut *state;
        if let Phase::Reducing(posted) = &state.phase {
            let Some(result) = posted.test() else { return Ok(Progress::Moving) };
            state.store(result);
        }
        let State { phase, staging } = state;
        match phase {
            Phase::Waiting => return Ok(Progress::Waiting),
            Phase::Over(code) => return Ok(Progress::Over(*code)),
            Phase::Reducing(_) | Phase::Failed(_) => {}
            Phase::Storing => match staging.is_stored() {
                Ok(false) => return Ok(Progress::Moving),
                Ok(true) => {}
                Err(error) => *phase = Phase::Failed(error),
            },
        }
        self.shared.pending.fetch_sub(1, Ordering::AcqRel);
        match mem::replace(phase, Phase::Over(Code::INTERNAL_ERROR)) {
            Phase::Failed(error) => {
                *phase = Phase::Over(outcome::code(&error));
                Err(error)
            }
            _ => Ok(Progress::Done),
        }
    }

    /// Waits at most until `deadline`. Returns whether nobody uses the collective's memory any more. If the
    /// collective needs other ranks, its communicator has been aborted.
    pub(super) fn end(&self, communicator: &Communicator, deadline: Instant) -> bool {
        let mut state = self.state();
        let state = &mut *state;
        if let Phase::Reducing(posted) = &state.phase {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(result) = posted.wait_within(left) else { return false };
            state.store(result);
        }
        if matches!(state.phase, Phase::Waiting)
            && let Err(error) = communicator.check()
        {
            state.phase = Phase::Failed(error);
        }
        // A GPU whose driver fails copies nothing any more.
        wait_until(deadline, || state.staging.is_idle().unwrap_or(true))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until `is_so` returns true, at most until `deadline`. Returns whether it did.
pub(super) fn wait_until(deadline: Instant, mut is_so: impl FnMut() -> bool) -> bool {
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(NAP);
    }
    true
}
