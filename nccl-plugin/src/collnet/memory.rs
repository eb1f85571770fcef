//! Registered memory of collective comms. Processors reduce, so a registration only says which memory is
//! meant, and on which GPU it is.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use invar::cuda::Gpu;
use invar::raw::gpu_of;

use crate::abi::{PTR_CUDA, PTR_HOST};
use crate::outcome::{Failed, failed, misused};
use crate::registry::{Number, Registry};

static REGISTRATIONS: Registry<Registered> = Registry::new(6);

struct Registered {
    comm: Number,
    first: usize,
    len: usize,
    gpu: Option<Gpu>,
}

/// A range of registered memory.
#[derive(Clone, Debug)]
pub(super) struct MemoryRange {
    pub(super) at: *mut u8,
    pub(super) len: usize,
    /// The GPU that has the memory, or `None` for host memory.
    pub(super) gpu: Option<Gpu>,
    /// The registration that has the memory, or `None` for no bytes.
    pub(super) registration: Option<Number>,
}

/// Registers memory of a kind with a comm. Returns the registration.
pub(super) fn register(
    comm: Number,
    first: usize,
    len: usize,
    kind: c_int,
) -> Result<Number, Failed> {
    if first.checked_add(len).is_none() {
        return Err(misused(format_args!("regMr of {len} bytes at {first:#x}")));
    }
    let gpu = match kind {
        PTR_HOST => None,
        PTR_CUDA => Some(gpu_of(first as u64, len).map_err(|error| failed(&error))?),
        _ => return Err(misused(format_args!("regMr of memory of type {kind}"))),
    };
    Ok(REGISTRATIONS.put(|_| Arc::new(Registered { comm, first, len, gpu })))
}

/// Finds a registration with a comm by NCCL's pointer.
pub(super) fn find(comm: Number, mhandle: *mut c_void) -> Result<Number, Failed> {
    let number = Number::from_ptr(mhandle);
    if REGISTRATIONS.get(number).is_none_or(|registered| registered.comm != comm) {
        return Err(misused(format_args!("deregMr: {mhandle:p} is no registration of this comm")));
    }
    Ok(number)
}

/// Ends a registration, whose memory no collective uses.
pub(super) fn deregister(registration: Number) {
    REGISTRATIONS.remove(registration);
}

/// Ends all registrations with a comm.
pub(super) fn forget(comm: Number) {
    REGISTRATIONS.remove_all(|registered| registered.comm == comm);
}

/// Returns a range, if it lies within a registration with a comm. `function` and `what` name it for the
/// log. An empty range needs no registration.
pub(super) fn locate(
    (function, what): (&str, &str),
    comm: Number,
    mhandle: *mut c_void,
    first: *mut c_void,
    len: usize,
) -> Result<MemoryRange, Failed> {
    let at = first.cast();
    if len == 0 {
        return Ok(MemoryRange { at, len, gpu: None, registration: None });
    }
    let registration = Number::from_ptr(mhandle);
    let found = REGISTRATIONS.read(registration, |registered| {
        let Registered { first, len, gpu, .. } = &**registered;
        (registered.comm == comm).then(|| (*first, *len, gpu.clone()))
    });
    let (start, all, gpu) = found.flatten().ok_or_else(|| {
        misused(format_args!("{function}: {what}: {mhandle:p} is no registration with this comm"))
    })?;
    let before = first.addr().checked_sub(start);
    let end = before.and_then(|before| before.checked_add(len));
    if end.is_none_or(|end| end > all) {
        return Err(misused(format_args!(
            "{function}: {what}: {len} bytes at {first:p} are not within the registered {all} bytes at \
             {start:#x}"
        )));
    }
    Ok(MemoryRange { at, len, gpu, registration: Some(registration) })
}

impl MemoryRange {
    /// Whether two ranges share a byte.
    pub(super) fn overlaps(&self, other: &MemoryRange) -> bool {
        let end = |range: &MemoryRange| range.at.addr().saturating_add(range.len);
        let has_bytes = self.len > 0 && other.len > 0;
        has_bytes && end(self) > other.at.addr() && end(other) > self.at.addr()
    }
}
