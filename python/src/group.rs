//! The class `Group`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar::communicator::Mover;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::prepared::Prepared;
use crate::work::{Session, Work};

/// A group of calls that run together, which ``Communicator.group()`` returns.
///
/// The collectives of a group run one after the other, then its sends and receives at once. A ``with``
/// block runs the group at its end.
///
/// >>> ours, theirs = np.arange(3), np.empty(3, int)
/// >>> with comm.group() as group:
/// ...     group.send(ours, (comm.rank + 1) % comm.nranks)
/// ...     group.recv(theirs, (comm.rank - 1) % comm.nranks)
/// >>> theirs
/// array([0, 1, 2])
#[pyclass(name = "Group", module = "invar", frozen)]
pub(crate) struct PyGroup {
    session: Arc<Session>,
    prepared: Mutex<Vec<Prepared>>,
}

impl PyGroup {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        PyGroup { session, prepared: Mutex::default() }
    }

    pub(crate) fn add(
        &self,
        prepare: impl FnOnce(&invar::Communicator) -> PyResult<Prepared>,
    ) -> PyResult<()> {
        let prepared = prepare(&*self.session.open()?)?;
        self.prepared().push(prepared);
        Ok(())
    }

    fn prepared(&self) -> MutexGuard<'_, Vec<Prepared>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the calls, so that the group is empty again.
    fn take(&self) -> Vec<Prepared> {
        std::mem::take(&mut *self.prepared())
    }
}

#[pymethods]
impl PyGroup {
    /// Run all calls of the group, and return once they are done. The group is then empty.
    ///
    /// >>> group = comm.group()
    /// >>> group.barrier()
    /// >>> group.run()
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        self.session.run(py, self.take())
    }

    /// Start all calls of the group. The group is then empty.
    ///
    /// A thread of the communicator moves them. Without `background` the thread that waits for the work
    /// does, which takes less time if it waits at once; that of the communicator stands in after some
    /// milliseconds.
    ///
    /// >>> group = comm.group()
    /// >>> group.barrier()
    /// >>> group.start(background=False).wait()
    #[pyo3(signature = (*, background=true))]
    fn start(&self, py: Python<'_>, background: bool) -> PyResult<Work> {
        let mover = if background { Mover::Worker } else { Mover::Caller };
        self.session.start(py, self.take(), mover)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyType>>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let calls = self.take();
        match kind {
            None => self.session.run(py, calls),
            Some(_) => Ok(()),
        }
    }
}
