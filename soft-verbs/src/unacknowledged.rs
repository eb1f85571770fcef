//! Events that a program took and has to acknowledge.

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::object::{self, Object};

/// The number of events of an object that the program took and did not acknowledge.
pub(crate) struct Unacknowledged {
    /// `None` at the object's end, when nobody may take more.
    count: Mutex<Option<u32>>,
    acknowledged: Condvar,
}

impl Unacknowledged {
    pub(crate) fn new() -> Self {
        Unacknowledged { count: Mutex::new(Some(0)), acknowledged: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<u32>> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the program takes an event. Returns whether it may.
    pub(crate) fn note(&self) -> bool {
        let mut count = self.lock();
        *count = count.map(|count| count + 1);
        count.is_some()
    }

    pub(crate) fn acknowledge(&self, events: u32) {
        let mut count = self.lock();
        *count = count.map(|left| left.saturating_sub(events));
        self.acknowledged.notify_all();
    }

    /// Waits, without a limit, until the program has acknowledged all events that it took: the program owes
    /// that. From then on it can take none.
    fn end(&self) {
        let mut count = self.lock();
        while count.is_some_and(|count| count > 0) {
            count = self.acknowledged.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
        *count = None;
    }
}

/// Takes an object back, unless `check` refuses. Like rdma-core, the call waits until the program has
/// acknowledged all events of the object: another thread may still use the object.
pub(crate) fn take<T: Object>(
    base: *mut T::Base,
    unacknowledged: impl Fn(&T) -> &Unacknowledged,
    check: impl Fn(&T) -> Result<(), c_int>,
) -> Result<Box<T>, c_int> {
    let object = object::get::<T>(base)?;
    check(object)?;
    unacknowledged(object).end();
    let taken = object::take::<T>(base, check);
    if taken.is_err() {
        *unacknowledged(object).lock() = Some(0);
    }
    taken
}
