//! The place where ranks meet.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use invar::Settings;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::error::raised;

/// The place where the ranks of one communicator meet. One process of the program has it.
///
/// `address` is an IP address and port at which all ranks reach this process; with port 0 the system
/// chooses a port. All ranks must join within `timeout` seconds. Close the hub after the communicators.
///
/// >>> with invar.Hub(1) as hub, invar.Communicator.join(hub.id, 0, 1) as alone:
/// ...     len(hub.id), alone.nranks
/// (128, 1)
#[pyclass(name = "Hub", module = "invar", frozen)]
pub(crate) struct PyHub {
    hub: Mutex<Option<invar::Hub>>,
    id: [u8; 128],
}

impl PyHub {
    /// Takes the hub. The ranks may wait for other threads of this interpreter, so drop it detached.
    pub(crate) fn take(&self) -> Option<invar::Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl PyHub {
    #[new]
    #[pyo3(signature = (nranks, address="127.0.0.1:0", *, timeout=30.0))]
    fn new(py: Python<'_>, nranks: u32, address: &str, timeout: f64) -> PyResult<Self> {
        let address: SocketAddr = address.parse().map_err(|_| {
            let text = format!("address {address}: not an IP address and port as in 10.0.0.1:7000");
            PyValueError::new_err(text)
        })?;
        let within = Duration::try_from_secs_f64(timeout)
            .map_err(|error| PyValueError::new_err(format!("timeout: {error}")))?;
        let hub = Settings::from_env().and_then(|settings| {
            invar::Hub::listen(address, settings.tcp_ports(), nranks, None, within)
        });
        let hub = hub.map_err(|error| raised(py, &error))?;
        Ok(PyHub { id: *hub.id().as_bytes(), hub: Mutex::new(Some(hub)) })
    }

    /// The 128 bytes with which every rank joins. They contain the secret: keep them from other users.
    ///
    /// >>> with invar.Hub(1) as hub:
    /// ...     len(hub.id)
    /// 128
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.id)
    }

    /// Close the hub. This waits at most two seconds for the ranks to leave.
    ///
    /// >>> hub = invar.Hub(1)
    /// >>> hub.close()
    fn close(&self, py: Python<'_>) {
        let hub = self.take();
        py.detach(|| drop(hub));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

impl Drop for PyHub {
    /// Ranks in other threads of this process may need the interpreter to leave.
    fn drop(&mut self) {
        Python::try_attach(|py| self.close(py));
    }
}
