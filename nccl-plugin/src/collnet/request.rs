//! Requests: collectives from their call to the test that reports them.

use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use invar::communicator::Posted;
use invar::{Communicator, Error};

use super::staging::Staging;
use crate::abi::Code;
use crate::outcome::{Failed, failed, misused};
use crate::registry::Number;

/// A collective that is not done.
pub(super) struct CollRequest {
    /// The comm that the collective runs on.
    pub(super) comm: Number,
    /// Length of the output in bytes.
    pub(super) bytes: usize,
    state: Mutex<State>,
}

enum State {
    /// The collective has not started.
    Waiting(Staging),
    /// The ranks reduce. The memory of the staging belongs to the collective.
    Reducing(Posted, Staging),
    /// The result is on its way to a GPU.
    Storing(Staging),
    /// The collective has failed. A copy may still use its memory, so the request keeps it.
    Failed(Code, Staging),
    /// The result is reported.
    Over,
}

impl CollRequest {
    pub(super) fn new(comm: Number, bytes: usize, staging: Staging) -> Self {
        CollRequest { comm, bytes, state: Mutex::new(State::Waiting(staging)) }
    }

    /// Starts the collective if its input is there. Returns whether the next one may start.
    pub(super) fn start(&self, communicator: &Communicator) -> bool {
        let mut state = self.state();
        let State::Waiting(staging) = &mut *state else { return true };
        let posted = match staging.is_fetched() {
            Ok(false) => return false,
            // SAFETY: The caller of `CollComm::start` has promised what `post` demands.
            Ok(true) => unsafe { communicator.post(&staging.collectives) },
            Err(error) => Err(error),
        };
        let Some(staging) = state.take() else { return true };
        *state = match posted {
            Ok(posted) => State::Reducing(posted, staging),
            Err(error) => State::Failed(given_up(&error, communicator).0, staging),
        };
        true
    }

    /// Moves the collective. Returns its memory once the result is in its place.
    pub(super) fn advance(&self, communicator: &Communicator) -> Result<Option<Staging>, Failed> {
        let mut state = self.state();
        loop {
            // Whether the result is in its place, unless something has failed.
            let is_over = match &mut *state {
                State::Waiting(_) => return Ok(None),
                State::Reducing(posted, staging) => match posted.test() {
                    None => return Ok(None),
                    // SAFETY: NCCL leaves the memory to the collective until a test reports it.
                    Some(result) => {
                        result.and_then(|()| unsafe { staging.store() }).map(|()| false)
                    }
                },
                State::Storing(staging) => match staging.is_stored() {
                    Ok(false) => return Ok(None),
                    stored => stored,
                },
                State::Failed(code, _) => return Err(Failed(*code)),
                State::Over => {
                    return Err(misused("test of a request that another test has reported"));
                }
            };
            let Some(staging) = state.take() else { return Ok(None) };
            match is_over {
                Ok(true) => return Ok(Some(staging)),
                Ok(false) => *state = State::Storing(staging),
                Err(error) => {
                    let failed = given_up(&error, communicator);
                    *state = State::Failed(failed.0, staging);
                }
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the memory of a collective that is not over.
    fn take(&mut self) -> Option<Staging> {
        match mem::replace(self, State::Over) {
            State::Waiting(staging)
            | State::Reducing(_, staging)
            | State::Storing(staging)
            | State::Failed(_, staging) => Some(staging),
            State::Over => None,
        }
    }
}

/// Logs an error, and tells the other ranks that this one does not go on.
#[cold]
fn given_up(error: &Error, communicator: &Communicator) -> Failed {
    communicator.abort(&error.to_string());
    failed(error)
}
