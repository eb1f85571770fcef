//! Calls that make a request and wait for it.

use invar_core::error::Ends;

use crate::wait::{Waiter, Waits};
use crate::{Error, Request};

/// A comm that makes requests.
pub(crate) trait Requests: Waits {
    /// The requests of calls that gave up.
    fn abandoned(&mut self) -> &mut Vec<Request>;

    /// Returns whether a request is under way. Ends the request if it is done.
    fn is_under_way(&mut self, request: &Request) -> bool;

    /// Ends the requests that nobody waits for any more, if they are done.
    #[cold]
    fn end_abandoned(&mut self) {
        let mut requests = std::mem::take(self.abandoned());
        requests.retain(|request| self.is_under_way(request));
        *self.abandoned() = requests;
    }
}

/// A call that makes a request and waits for it. If the call gives up, later calls on the comm end the request.
pub(crate) struct Call<'a, C: Requests> {
    comm: &'a mut C,
    request: Option<Request>,
}

impl<'a, C: Requests> Call<'a, C> {
    pub(crate) fn new(comm: &'a mut C) -> Self {
        Call { comm, request: None }
    }

    /// Makes the request by `start` if there is none yet, and then tests the request by `test`. Returns `None` if
    /// there is no request or no result yet.
    pub(crate) fn poll<T>(
        &mut self,
        start: impl FnOnce(&mut C) -> Result<Option<Request>, Error>,
        test: impl FnOnce(&mut C, &Request) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        if self.request.is_none() {
            self.request = start(self.comm)?;
        }
        let Some(request) = &self.request else { return Ok(None) };
        let result = test(self.comm, request)?;
        if result.is_some() {
            self.request = None;
        }
        Ok(result)
    }
}

impl<C: Requests> Waits for Call<'_, C> {
    fn waiter(&mut self) -> &mut Waiter {
        self.comm.waiter()
    }

    fn names(&self) -> Ends {
        self.comm.names()
    }

    fn arm_waiter(&mut self) {
        self.comm.arm_waiter();
    }

    fn park(&mut self, is_asleep: bool) {
        self.comm.park(is_asleep);
    }
}

impl<C: Requests> Drop for Call<'_, C> {
    fn drop(&mut self) {
        self.comm.abandoned().extend(self.request.take());
    }
}
