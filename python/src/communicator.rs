//! The class `Communicator`.

use std::collections::BTreeMap;
use std::sync::Arc;

use invar::communicator::{Mover, Operation};
use invar::{Settings, UniqueId};
use pyo3::exceptions::{PyGeneratorExit, PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::error::raised;
use crate::group::PyGroup;
use crate::prepared::{self, Object, Prepared};
use crate::waiting::interruptible;
use crate::work::{Session, Work};

/// One rank of a communicator: ranks that run collectives together and send messages to each other.
///
/// All ranks make the same calls in the same order. Data is anything that lends contiguous memory:
/// NumPy's arrays, tensors of the CPU, ``bytearray``, ``array.array`` and others. Reductions take the
/// types int8, uint8, int32, uint32, int64, uint64, float16, bfloat16, float32 and float64; other
/// operations take any type. Without an ``output`` an operation works in place.
///
/// A call that waits leaves the interpreter to other threads. Ctrl-C ends it, and with it the
/// communicator on all ranks. A ``start_…`` method returns a Work at once.
///
/// Left by an exception, a ``with`` block aborts the communicator, so that the other ranks do not wait.
///
/// >>> data = np.arange(4, dtype=np.float32)
/// >>> comm.all_reduce(data)
/// >>> data
/// array([0., 1., 2., 3.], dtype=float32)
#[pyclass(name = "Communicator", module = "invar", frozen)]
pub(crate) struct PyCommunicator {
    session: Arc<Session>,
}

type Given = Option<BTreeMap<String, String>>;

/// The settings of the environment, with those that the caller gives in front of it.
fn settings(py: Python<'_>, given: Given) -> PyResult<Settings> {
    let Some(given) = given else {
        return Settings::from_env().map_err(|error| raised(py, &error));
    };
    let known = Settings::from_vars(&BTreeMap::new()).map_err(|error| raised(py, &error))?;
    let known = known.in_force();
    for name in given.keys() {
        if !known.iter().any(|known| known.info.name == name) {
            let text = format!("settings: {name} is no setting; `invar settings` lists them");
            return Err(PyValueError::new_err(text));
        }
    }
    let lookup = |name: &str| {
        let of_environment = || std::env::var_os(name).map(|text| text.to_string_lossy().into());
        given.get(name).cloned().or_else(of_environment)
    };
    Settings::from_lookup(lookup).map_err(|error| raised(py, &error))
}

impl PyCommunicator {
    fn joined(
        py: Python<'_>,
        join: impl FnOnce() -> Result<invar::Communicator, invar::Error> + Send + 'static,
    ) -> PyResult<Self> {
        let joined = interruptible(py, join)?.map_err(|error| raised(py, &error))?;
        Ok(PyCommunicator { session: Arc::new(Session::new(joined)) })
    }

    fn run(
        &self,
        py: Python<'_>,
        prepare: impl FnOnce(&invar::Communicator) -> PyResult<Prepared>,
    ) -> PyResult<()> {
        let prepared = prepare(&*self.session.open()?)?;
        self.session.run(py, vec![prepared])
    }

    fn start(
        &self,
        py: Python<'_>,
        prepare: impl FnOnce(&invar::Communicator) -> PyResult<Prepared>,
    ) -> PyResult<Work> {
        let prepared = prepare(&*self.session.open()?)?;
        self.session.start(py, vec![prepared], Mover::Worker)
    }
}

#[pymethods]
impl PyCommunicator {
    /// Join as `rank` of `nranks`, together with all other ranks, by the id of a Hub.
    ///
    /// `settings` maps names of variables to values, as in ``{"INVAR_TRANSPORT": "socket"}``. They go
    /// before the variables of the environment. The call returns when the last rank has joined.
    #[staticmethod]
    #[pyo3(signature = (id, rank, nranks, *, settings=None))]
    fn join(py: Python<'_>, id: &[u8], rank: u32, nranks: u32, settings: Given) -> PyResult<Self> {
        let bytes: [u8; 128] = id.try_into().map_err(|_| {
            PyValueError::new_err(format!("id of {} bytes: the id of a hub has 128", id.len()))
        })?;
        let id = UniqueId::from_bytes(bytes).map_err(|error| raised(py, &error.into()))?;
        let settings = self::settings(py, settings)?;
        Self::joined(py, move || invar::Communicator::join(&id, rank, nranks, &settings))
    }

    /// Join the ranks of this process' job, as its launcher describes them: torchrun, Open MPI's or
    /// MPICH's mpirun, Slurm's srun, or an indexed job of Kubernetes.
    ///
    /// `settings` is that of `join`. A job has one such communicator at a time.
    #[staticmethod]
    #[pyo3(signature = (*, settings=None))]
    fn from_env(py: Python<'_>, settings: Given) -> PyResult<Self> {
        let settings = self::settings(py, settings)?;
        Self::joined(py, move || invar::Communicator::from_env(&settings))
    }

    /// The number of this rank, from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.session.rank
    }

    /// The number of ranks.
    #[getter]
    fn nranks(&self) -> u32 {
        self.session.nranks
    }

    /// What carries the data: shared memory, or a transport and its devices.
    #[getter]
    fn transport(&self) -> PyResult<String> {
        Ok(self.session.open()?.transport().to_owned())
    }

    /// Reduce the data of all ranks, and give the result to each rank.
    ///
    /// `op` is 'sum', 'prod', 'max', 'min' or 'avg'.
    ///
    /// >>> total = np.empty(2, np.int32)
    /// >>> comm.all_reduce(np.array([7, 8], np.int32), total, op="max")
    /// >>> total
    /// array([7, 8], dtype=int32)
    #[pyo3(signature = (data, output=None, op="sum"))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
    ) -> PyResult<()> {
        let operation = Operation::AllReduce;
        self.run(py, |c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Start `all_reduce`.
    #[pyo3(signature = (data, output=None, op="sum"))]
    fn start_all_reduce(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
    ) -> PyResult<Work> {
        let operation = Operation::AllReduce;
        self.start(py, |c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Give the data of all ranks, in their order, to each rank.
    ///
    /// The output is as long as the data of all ranks. In place, `data` is that long, and this rank's
    /// data is its block of it.
    ///
    /// >>> gathered = np.empty((comm.nranks, 3), np.uint16)
    /// >>> comm.all_gather(np.array([1, 2, 3], np.uint16), gathered)
    /// >>> gathered
    /// array([[1, 2, 3]], dtype=uint16)
    #[pyo3(signature = (data, output=None))]
    fn all_gather(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
    ) -> PyResult<()> {
        let operation = Operation::AllGather;
        self.run(py, |c| prepared::collective(c, operation, None, Some(data), output))
    }

    /// Start `all_gather`.
    #[pyo3(signature = (data, output=None))]
    fn start_all_gather(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
    ) -> PyResult<Work> {
        let operation = Operation::AllGather;
        self.start(py, |c| prepared::collective(c, operation, None, Some(data), output))
    }

    /// Reduce the data of all ranks, and give each rank its block of the result.
    ///
    /// In place, the result replaces this rank's block of `data`; the other blocks are unspecified.
    ///
    /// >>> block = np.empty(3)
    /// >>> comm.reduce_scatter(np.ones((comm.nranks, 3)), block, op="avg")
    /// >>> block
    /// array([1., 1., 1.])
    #[pyo3(signature = (data, output=None, op="sum"))]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
    ) -> PyResult<()> {
        let operation = Operation::ReduceScatter;
        self.run(py, |c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Start `reduce_scatter`.
    #[pyo3(signature = (data, output=None, op="sum"))]
    fn start_reduce_scatter(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
    ) -> PyResult<Work> {
        let operation = Operation::ReduceScatter;
        self.start(py, |c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Give the root's data to all ranks.
    ///
    /// With an output, `data` is the root's, and None on the other ranks.
    ///
    /// >>> weights = np.arange(3.0)
    /// >>> comm.broadcast(weights, root=0)
    #[pyo3(signature = (data, output=None, *, root=0))]
    fn broadcast(
        &self,
        py: Python<'_>,
        data: Option<Object<'_, '_>>,
        output: Option<Object<'_, '_>>,
        root: u32,
    ) -> PyResult<()> {
        let operation = Operation::Broadcast { root };
        self.run(py, |c| prepared::collective(c, operation, None, data, output))
    }

    /// Start `broadcast`.
    #[pyo3(signature = (data, output=None, *, root=0))]
    fn start_broadcast(
        &self,
        py: Python<'_>,
        data: Option<Object<'_, '_>>,
        output: Option<Object<'_, '_>>,
        root: u32,
    ) -> PyResult<Work> {
        let operation = Operation::Broadcast { root };
        self.start(py, |c| prepared::collective(c, operation, None, data, output))
    }

    /// Reduce the data of all ranks, and give the result to the root.
    ///
    /// The output is the root's, and None on the other ranks, whose data does not change.
    ///
    /// >>> most = np.empty(1)
    /// >>> comm.reduce(np.array([3.5]), most if comm.rank == 0 else None, op="max", root=0)
    /// >>> most
    /// array([3.5])
    #[pyo3(signature = (data, output=None, op="sum", *, root=0))]
    fn reduce(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
        root: u32,
    ) -> PyResult<()> {
        let operation = Operation::Reduce { root };
        self.run(py, |c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Start `reduce`.
    #[pyo3(signature = (data, output=None, op="sum", *, root=0))]
    fn start_reduce(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Option<Object<'_, '_>>,
        op: &str,
        root: u32,
    ) -> PyResult<Work> {
        let operation = Operation::Reduce { root };
        self.start(py, |c| prepared::collective(c, operation, Some(op), Some(data), output))
    }

    /// Send block i of the data to rank i. The block that rank i sends to this rank becomes block i of
    /// the output.
    ///
    /// >>> received = bytearray(comm.nranks)
    /// >>> comm.all_to_all(bytes(range(comm.nranks)), received)
    #[pyo3(signature = (data, output))]
    fn all_to_all(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Object<'_, '_>,
    ) -> PyResult<()> {
        let operation = Operation::AllToAll;
        self.run(py, |c| prepared::collective(c, operation, None, Some(data), Some(output)))
    }

    /// Start `all_to_all`.
    #[pyo3(signature = (data, output))]
    fn start_all_to_all(
        &self,
        py: Python<'_>,
        data: Object<'_, '_>,
        output: Object<'_, '_>,
    ) -> PyResult<Work> {
        let operation = Operation::AllToAll;
        self.start(py, |c| prepared::collective(c, operation, None, Some(data), Some(output)))
    }

    /// Send data to a rank, which must receive as many bytes.
    ///
    /// The call may wait until the peer receives. Use a group for several transfers at once.
    #[pyo3(signature = (data, peer))]
    fn send(&self, py: Python<'_>, data: Object<'_, '_>, peer: u32) -> PyResult<()> {
        self.run(py, |c| prepared::send(c, data, peer))
    }

    /// Start `send`.
    #[pyo3(signature = (data, peer))]
    fn start_send(&self, py: Python<'_>, data: Object<'_, '_>, peer: u32) -> PyResult<Work> {
        self.start(py, |c| prepared::send(c, data, peer))
    }

    /// Receive data from a rank, which must send as many bytes.
    #[pyo3(signature = (data, peer))]
    fn recv(&self, py: Python<'_>, data: Object<'_, '_>, peer: u32) -> PyResult<()> {
        self.run(py, |c| prepared::recv(c, data, peer))
    }

    /// Start `recv`.
    #[pyo3(signature = (data, peer))]
    fn start_recv(&self, py: Python<'_>, data: Object<'_, '_>, peer: u32) -> PyResult<Work> {
        self.start(py, |c| prepared::recv(c, data, peer))
    }

    /// Wait until all ranks have called this method.
    ///
    /// >>> comm.barrier()
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, prepared::barrier)
    }

    /// Start `barrier`.
    fn start_barrier(&self, py: Python<'_>) -> PyResult<Work> {
        self.start(py, prepared::barrier)
    }

    /// Return a group of calls that run together.
    fn group(&self) -> PyGroup {
        PyGroup::new(Arc::clone(&self.session))
    }

    /// Send bytes to all ranks, and return the bytes of every rank in the order of ranks.
    ///
    /// The bytes go through the rendezvous: use this for things that ranks agree on before they move
    /// data. The lengths may differ.
    ///
    /// >>> comm.exchange(b"ready")
    /// [b'ready']
    fn exchange<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let communicator = self.session.open()?;
        let (data, this) = (data.to_vec(), Arc::clone(&communicator));
        let exchanged = match interruptible(py, move || this.exchange(&data)) {
            Ok(exchanged) => exchanged.map_err(|error| raised(py, &error))?,
            Err(interrupt) => {
                py.detach(|| communicator.abort("a blocking call was interrupted"));
                return Err(interrupt);
            }
        };
        Ok(exchanged.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// End the communicator on all ranks, and tell each of them the reason.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.session.abort(py, reason)
    }

    /// Raise the error that ended the communicator, if there is one.
    ///
    /// >>> comm.check()
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.session.open()?.check().map_err(|error| raised(py, &error))
    }

    /// Return the state of this rank as text, also while a call hangs.
    fn dump(&self) -> PyResult<String> {
        Ok(self.session.open()?.dump())
    }

    /// Wait for the operations in progress, and leave the communicator.
    ///
    /// The other ranks should be done too. Raises the error of an operation whose work nobody waited
    /// for. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.session.close(py)
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
        let Some(kind) = kind else { return self.session.close(py) };
        let is_planned =
            kind.is_subclass_of::<PySystemExit>()? || kind.is_subclass_of::<PyGeneratorExit>()?;
        if !is_planned && let Ok(communicator) = self.session.open() {
            let reason = format!("its program left the communicator with {}", kind.name()?);
            py.detach(|| communicator.abort(&reason));
        }
        // The exception that leaves the block is the one that matters.
        let _ = self.session.close(py);
        Ok(())
    }

    fn __repr__(&self) -> String {
        let Session { rank, nranks, .. } = &*self.session;
        match self.session.open() {
            Ok(open) => {
                format!("<invar.Communicator rank {rank} of {nranks} over {}>", open.transport())
            }
            Err(_) => format!("<invar.Communicator rank {rank} of {nranks}, closed>"),
        }
    }
}
