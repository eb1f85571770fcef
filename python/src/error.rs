//! The exception of the module.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(
    invar,
    Error,
    PyRuntimeError,
    "An operation failed. The text is one line that names what failed, where, and why.\n\n\
     kind: whose fault it is: 'usage', 'local', 'incompatible', 'peer' or\n      'network'.\n\
     rank: the rank that the error is about, or None.\n\
     peer: the TCP address of the peer or rendezvous that the error is about, or None.\n\
     device: the name of this host's device that the error is about, or None.\n\
     is_timeout: whether a rank did not answer in time.\n\
     is_connection_lost: whether the communicator has ended, so that each later call fails too."
);

/// Makes an exception of an error.
#[cold]
pub(crate) fn raised(py: Python<'_>, error: &invar::Error) -> PyErr {
    let kind = format!("{:?}", error.kind()).to_lowercase();
    // PyO3 would make the value of `Error::new_err` later, when Python may have ended.
    let value = match py.get_type::<Error>().call1((error.to_string(),)) {
        Ok(value) => value,
        Err(other) => return other,
    };
    let fields = value
        .setattr("kind", kind)
        .and_then(|()| value.setattr("rank", error.rank()))
        .and_then(|()| value.setattr("peer", error.peer().map(|peer| peer.to_string())))
        .and_then(|()| value.setattr("device", error.device()))
        .and_then(|()| value.setattr("is_timeout", error.is_timeout()))
        .and_then(|()| value.setattr("is_connection_lost", error.is_connection_lost()));
    match fields {
        Ok(()) => PyErr::from_value(value),
        Err(other) => other,
    }
}
