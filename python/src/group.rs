//! The class `Group`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use invar::communicator::{Mover, Operation};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::prepared::{self, Object, Prepared};
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

    fn add(
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
    /// Add `Communicator.all_reduce`.
    #[pyo3(signature = (data, output=None, op="sum"))]
    fn all_reduce(
        &self,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
    ) -> PyResult<()> {
        let operation = Operation::AllReduce;
        self.add(|c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Add `Communicator.all_gather`.
    #[pyo3(signature = (data, output=None))]
    fn all_gather(&self, data: Object<'_, '_>, output: Option<Object<'_, '_>>) -> PyResult<()> {
        self.add(|c| prepared::collective(c, Operation::AllGather, None, Some(data), output))
    }

    /// Add `Communicator.reduce_scatter`.
    #[pyo3(signature = (data, output=None, op="sum"))]
    fn reduce_scatter(
        &self,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
    ) -> PyResult<()> {
        let operation = Operation::ReduceScatter;
        self.add(|c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Add `Communicator.broadcast`.
    #[pyo3(signature = (data, output=None, *, root=0))]
    fn broadcast(
        &self,
        data: Option<Object<'_, '_>>,
        output: Option<Object<'_, '_>>,
        root: u32,
    ) -> PyResult<()> {
        let operation = Operation::Broadcast { root };
        self.add(|c| prepared::collective(c, operation, None, data, output))
    }

    /// Add `Communicator.reduce`.
    #[pyo3(signature = (data, output=None, op="sum", *, root=0))]
    fn reduce(
        &self,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
        root: u32,
    ) -> PyResult<()> {
        let operation = Operation::Reduce { root };
        self.add(|c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Add `Communicator.all_to_all`.
    #[pyo3(signature = (data, output))]
    fn all_to_all(&self, data: Object<'_, '_>, output: Object<'_, '_>) -> PyResult<()> {
        let operation = Operation::AllToAll;
        self.add(|c| prepared::collective(c, operation, None, Some(data), Some(output)))
    }

    /// Add `Communicator.send`.
    #[pyo3(signature = (data, peer))]
    fn send(&self, data: Object<'_, '_>, peer: u32) -> PyResult<()> {
        self.add(|c| prepared::send(c, data, peer))
    }

    /// Add `Communicator.recv`.
    #[pyo3(signature = (data, peer))]
    fn recv(&self, data: Object<'_, '_>, peer: u32) -> PyResult<()> {
        self.add(|c| prepared::recv(c, data, peer))
    }

    /// Add `Communicator.barrier`.
    fn barrier(&self) -> PyResult<()> {
        self.add(prepared::barrier)
    }

    /// Run all calls of the group, and return once they are done. The group is then empty.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        self.session.run(py, self.take())
    }

    /// Start all calls of the group. The group is then empty.
    ///
    /// A thread of the communicator moves them. Without `background` the thread that waits for the work
    /// does, which takes less time if it waits at once; that of the communicator stands in after some
    /// milliseconds.
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
        _value: Object<'_, '_>,
        _traceback: Object<'_, '_>,
    ) -> PyResult<()> {
        let calls = self.take();
        match kind {
            None => self.session.run(py, calls),
            Some(_) => Ok(()),
        }
    }
}
