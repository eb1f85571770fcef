//! The Python module `invar`: communicators over the memory of NumPy's arrays and of everything else that
//! lends its memory.
//!
//! 1. [`memory`] borrows the memory of a Python object, by the buffer protocol or by DLPack.
//! 2. [`prepared`] makes an operation of the arguments of a call.
//! 3. [`work`] waits for operations without the interpreter's lock, so that other threads go on and Ctrl-C
//!    works.
//! 4. [`communicator`], [`group`] and [`hub`] are the classes that Python sees.
//! 5. [`operations`] lists the operations, and gives both first classes their methods for each.
//! 6. [`closing`] ends communicators and hubs at the same time.
//!
//! The package around the module is in `python/invar`: `_invar.pyi` has the types of everything here.

mod closing;
mod communicator;
mod dlpack;
mod element;
mod error;
mod group;
mod hub;
mod memory;
mod operations;
mod prepared;
mod waiting;
mod work;

use pyo3::prelude::*;

/// The native part of the package `invar`.
#[pymodule]
mod _invar {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::closing::close_all;
    #[pymodule_export]
    use crate::communicator::PyCommunicator;
    #[pymodule_export]
    use crate::error::Error;
    #[pymodule_export]
    use crate::group::PyGroup;
    #[pymodule_export]
    use crate::hub::PyHub;
    #[pymodule_export]
    use crate::memory::Lent;
    #[pymodule_export]
    use crate::work::Work;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
