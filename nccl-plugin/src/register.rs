//! Registered memory.

use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use invar::raw::{self, GpuRange};

use crate::abi::{Code, PTR_CUDA, PTR_HOST};
use crate::comm::Comm;
use crate::handles;
use crate::mhandle;
use crate::outcome::{Failed, Outcome, call, failed, length, misused, null};

/// `regMr`. The size is an `int` before v8.
pub(crate) unsafe extern "C" fn reg_mr<Size>(
    comm: *mut c_void,
    data: *mut c_void,
    size: Size,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> Code
where
    Size: TryInto<usize> + Display + Copy,
{
    call(|| {
        let size = length(("regMr", "bytes"), size)?;
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { register(comm, data, size, kind, None, mhandle) }
    })
}

/// `regMrDmaBuf`.
pub(crate) unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> Code {
    call(|| {
        if fd < 0 {
            return Err(misused(format_args!("regMrDmaBuf: {fd} is no file descriptor")));
        }
        // SAFETY: NCCL keeps the descriptor open during the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { register(comm, data, size, kind, Some((fd, offset)), mhandle) }
    })
}

/// `deregMr`. A null registration, which no `regMr` returns, succeeds as in NCCL.
pub(crate) unsafe extern "C" fn dereg_mr(comm: *mut c_void, mhandle: *mut c_void) -> Code {
    call(|| {
        // SAFETY: NCCL does not close a comm during a call on it.
        let comm = unsafe { find("deregMr", comm) }?;
        if mhandle.is_null() {
            return Ok(());
        }
        raw::deregister(comm.device(), mhandle::keys(mhandle)).map_err(|error| failed(&error))
    })
}

/// # Safety
/// The caller upholds NCCL's contract of `regMr` and `regMrDmaBuf`.
unsafe fn register(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    dma_buf: Option<(BorrowedFd<'_>, u64)>,
    mhandle: *mut *mut c_void,
) -> Outcome {
    if mhandle.is_null() {
        return Err(null("regMr: registration"));
    }
    // SAFETY: NCCL does not close a comm during a call on it.
    let comm = unsafe { find("regMr", comm) }?;
    let data = NonNull::new(data.cast::<u8>()).ok_or_else(|| null("regMr: memory"))?;
    // SAFETY: NCCL keeps the memory mapped until `deregMr`, and nothing else uses it during transfers.
    let keys = unsafe {
        match (kind, dma_buf) {
            (PTR_HOST, None) => raw::register(comm.device(), data, size),
            (PTR_CUDA, _) => {
                let addr = data.as_ptr().addr() as u64;
                raw::register_gpu(comm.device(), &GpuRange { addr, len: size, dma_buf })
            }
            _ => return Err(misused(format_args!("regMr of memory of type {kind}"))),
        }
    };
    let keys = keys.map_err(|error| failed(&error))?;
    // SAFETY: NCCL promises that `mhandle` has room for a registration.
    unsafe { mhandle.write(mhandle::with_keys(keys)) };
    Ok(())
}

/// # Safety
/// Nobody closes the comm while the reference lives.
unsafe fn find<'a>(function: &str, comm: *mut c_void) -> Result<&'a Comm, Failed> {
    let slot = handles::find(comm)
        .ok_or_else(|| misused(format_args!("{function}: {comm:p} is no comm that is open")))?;
    // SAFETY: The caller upholds this function's safety contract.
    Ok(unsafe { slot.comm() })
}
