//! The class `Communicator`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use invar::communicator::Mover;
use invar::{Settings, UniqueId};
use pyo3::exceptions::{PyGeneratorExit, PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::error::raised;
use crate::group::PyGroup;
use crate::prepared::Prepared;
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

/// The settings of the environment, with those that the caller gives in front of it. The first ones decide about
/// the log of the process.
fn settings(py: Python<'_>, given: Given) -> PyResult<Settings> {
    let settings = read(py, given)?;
    invar::log_to_stderr(&settings);
    Ok(settings)
}

fn read(py: Python<'_>, given: Given) -> PyResult<Settings> {
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
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value)));
    let vars: BTreeMap<String, String> = environment.chain(given).collect();
    Settings::from_vars(&vars).map_err(|error| raised(py, &error))
}

impl PyCommunicator {
    fn joined(
        py: Python<'_>,
        join: impl FnOnce() -> Result<invar::Communicator, invar::Error> + Send + 'static,
    ) -> PyResult<Self> {
        let joined = interruptible(py, join)?.map_err(|error| raised(py, &error))?;
        Ok(PyCommunicator { session: Arc::new(Session::new(joined)) })
    }

    /// Takes the communicator for its end, as [`Session::give_up`] does.
    pub(crate) fn give_up(&self, py: Python<'_>) -> Option<Arc<invar::Communicator>> {
        self.session.give_up(py)
    }

    pub(crate) fn run(
        &self,
        py: Python<'_>,
        prepare: impl FnOnce(&invar::Communicator) -> PyResult<Prepared>,
    ) -> PyResult<()> {
        let prepared = prepare(&*self.session.open()?)?;
        self.session.run(py, vec![prepared])
    }

    pub(crate) fn start(
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
    ///
    /// >>> with invar.Hub(1) as hub, invar.Communicator.join(hub.id, 0, 1) as alone:
    /// ...     alone.rank
    /// 0
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
    ///
    /// >>> comm.rank
    /// 0
    #[getter]
    fn rank(&self) -> u32 {
        self.session.rank
    }

    /// The number of ranks.
    ///
    /// >>> comm.nranks
    /// 1
    #[getter]
    fn nranks(&self) -> u32 {
        self.session.nranks
    }

    /// What carries the data: shared memory, or a transport and its devices.
    ///
    /// >>> text = f"over {comm.transport}"
    #[getter]
    fn transport(&self) -> PyResult<String> {
        Ok(self.session.open()?.transport().to_owned())
    }

    /// Return a group of calls that run together.
    ///
    /// >>> with comm.group() as group:
    /// ...     group.barrier()
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
        let (communicator, this) = (self.session.open()?, self.session.open()?);
        let data = data.to_vec();
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
    ///
    /// >>> with invar.Hub(1) as hub:
    /// ...     alone = invar.Communicator.join(hub.id, 0, 1)
    /// ...     alone.abort("the input is damaged")
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
    ///
    /// >>> text = comm.dump()
    fn dump(&self) -> PyResult<String> {
        Ok(self.session.open()?.dump())
    }

    /// Wait for the operations in progress, and leave the communicator.
    ///
    /// The other ranks should be done too. Raises the error of an operation whose work nobody waited
    /// for. A second call does nothing.
    ///
    /// >>> with invar.Hub(1) as hub:
    /// ...     alone = invar.Communicator.join(hub.id, 0, 1)
    /// ...     alone.close()
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
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
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
