//! The end of several communicators and hubs at once.

use std::thread::{self, Builder, Scope};

use pyo3::prelude::*;

use crate::communicator::PyCommunicator;
use crate::hub::PyHub;

/// Leave communicators and close hubs, all at the same time, since each may wait for ranks that are late.
///
/// Communicators with operations in progress are aborted. The threads are not Python's, since Python refuses
/// to start threads when a program ends. Only the package's own code calls this function.
#[pyfunction]
#[pyo3(name = "_close_all")]
pub(crate) fn close_all(
    py: Python<'_>,
    communicators: Vec<Bound<'_, PyCommunicator>>,
    hubs: Vec<Bound<'_, PyHub>>,
) {
    let communicators: Vec<_> =
        communicators.iter().filter_map(|communicator| communicator.get().give_up(py)).collect();
    let hubs: Vec<_> = hubs.iter().filter_map(|hub| hub.get().take()).collect();
    py.detach(|| {
        thread::scope(|scope| {
            for communicator in communicators {
                drop_in_thread(scope, communicator);
            }
            for hub in hubs {
                drop_in_thread(scope, hub);
            }
        });
    });
}

fn drop_in_thread<'scope, T: Send + 'scope>(scope: &'scope Scope<'scope, '_>, value: T) {
    let thread = Builder::new().name("invar-close".to_owned());
    // If the system has no room for a thread, this thread drops the value.
    drop(thread.spawn_scoped(scope, move || drop(value)));
}
