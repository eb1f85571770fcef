//! The calls of collNet's function table on a collective comm.

use std::ffi::{c_int, c_void};
use std::fmt::Display;
use std::ptr;
use std::slice;

use invar::communicator::{Operation, RawOperation};
use invar::{DataType, RedOp};

use super::comm::{self, CollComm};
use super::memory::{self, MemoryRange};
use super::window::{Elements, Window};
use crate::abi::{Code, PTR_CUDA, Sge};
use crate::outcome::{Failed, Outcome, call, length, misused, null};
use crate::registry::Number;

/// `reduceSupport`: whether processors reduce this type. NCCL does not use collNet for other types.
pub(crate) unsafe extern "C" fn reduce_support(
    data_type: c_int,
    redop: c_int,
    supported: *mut c_int,
) -> Code {
    call(|| {
        if supported.is_null() {
            return Err(null("reduceSupport: answer"));
        }
        let is_supported = data_type_of(data_type).is_some() && redop_of(redop).is_some();
        // SAFETY: NCCL promises room for the answer.
        unsafe { supported.write(c_int::from(is_supported)) };
        Ok(())
    })
}

/// Returns the type with NCCL's code.
fn data_type_of(code: c_int) -> Option<DataType> {
    usize::try_from(code).ok().and_then(|code| DataType::ALL.get(code).copied())
}

/// Returns the reduction with NCCL's code.
fn redop_of(code: c_int) -> Option<RedOp> {
    usize::try_from(code).ok().and_then(|code| RedOp::ALL.get(code).copied())
}

/// Returns type and reduction, or logs that `reduceSupport` says no.
fn reduction(function: &str, data_type: c_int, redop: c_int) -> Result<(DataType, RedOp), Failed> {
    data_type_of(data_type).zip(redop_of(redop)).ok_or_else(|| {
        misused(format_args!(
            "{function}: reduction {redop} of type {data_type}, which reduceSupport does not support"
        ))
    })
}

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
        unsafe { register(comm, data, size, kind, mhandle) }
    })
}

/// `regMrDmaBuf`. The driver copies GPU memory by its address, so the plugin does not use the DMA-BUF.
pub(crate) unsafe extern "C" fn reg_mr_dma_buf(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    _offset: u64,
    fd: c_int,
    mhandle: *mut *mut c_void,
) -> Code {
    call(|| {
        if fd < 0 || kind != PTR_CUDA {
            return Err(misused(format_args!(
                "regMrDmaBuf of memory of type {kind} with the file descriptor {fd}"
            )));
        }
        // SAFETY: The caller upholds this function's safety contract.
        unsafe { register(comm, data, size, kind, mhandle) }
    })
}

/// # Safety
/// The caller upholds NCCL's contract of `regMr`.
unsafe fn register(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    mhandle: *mut *mut c_void,
) -> Outcome {
    if mhandle.is_null() {
        return Err(null("regMr: registration"));
    }
    let (comm, _) = CollComm::find("regMr", comm)?;
    if data.is_null() {
        return Err(null("regMr: memory"));
    }
    let registered = memory::register(comm, data.addr(), size, kind)?;
    // SAFETY: NCCL promises that `mhandle` has room for a registration.
    unsafe { mhandle.write(registered.to_ptr()) };
    Ok(())
}

/// `deregMr`. NCCL frees the memory afterwards, before it closes an aborted comm. So collectives in progress that use
/// the memory end first. A null registration, which no `regMr` returns, succeeds as in NCCL.
pub(crate) unsafe extern "C" fn dereg_mr(comm: *mut c_void, mhandle: *mut c_void) -> Code {
    call(|| {
        let (number, comm) = CollComm::find("deregMr", comm)?;
        if mhandle.is_null() { Ok(()) } else { comm.deregister(number, mhandle) }
    })
}

/// `iallreduce`. The number of elements is an `int` before v9.
pub(crate) unsafe extern "C" fn iallreduce<Size>(
    comm: *mut c_void,
    input: *mut c_void,
    output: *mut c_void,
    count: Size,
    data_type: c_int,
    redop: c_int,
    input_mr: *mut c_void,
    output_mr: *mut c_void,
    request: *mut *mut c_void,
) -> Code
where
    Size: TryInto<usize> + Display + Copy,
{
    call(|| {
        let count = length(("iallreduce", "elements"), count)?;
        // SAFETY: The caller upholds NCCL's contract of a collective.
        let start = unsafe { Start::new("iallreduce", comm, request) }?;
        let (data_type, redop) = reduction(start.function, data_type, redop)?;
        let bytes = bytes_of(start.function, count, data_type)?;
        let input = start.locate("the input", input_mr, input, bytes)?;
        let output = start.locate("the output", output_mr, output, bytes)?;
        if input.at != output.at {
            start.check_apart(&input, &output)?;
        }
        let (operation, redop) = (Operation::AllReduce, Some(redop));
        let all = |input, output| {
            vec![RawOperation { operation, count, data_type, redop, input, output }]
        };
        // SAFETY: NCCL keeps the memory until the request is done, and this function has checked the
        // rest.
        unsafe { start.with((&[input], &[output]), bytes, all) }
    })
}

/// `iallgather`, since v8.
pub(crate) unsafe extern "C" fn iallgather<S: Sge>(
    comm: *mut c_void,
    own: *mut c_void,
    nparts: c_int,
    parts: *mut S,
    block: usize,
    offset: usize,
    len: usize,
    own_mr: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    call(|| {
        // SAFETY: The caller upholds NCCL's contract of a collective.
        let start = unsafe { Start::new("iallgather", comm, request) }?;
        let (rank, nranks) = start.comm.rank();
        let window = Window { block, offset, len };
        window.check(start.function, nranks, 1)?;
        // SAFETY: NCCL promises the parts.
        let parts = unsafe { start.parts(nparts, parts, len) }?;
        let piece = window.piece(rank);
        let own = start.locate("this rank's bytes", own_mr, own, piece.len())?;
        start.check_piece(&own, piece.start, &parts)?;
        let pieces = |own, all| window.gather((rank, nranks), own, all);
        // SAFETY: NCCL keeps the memory until the request is done, and this function has checked the
        // rest.
        unsafe { start.with((&[own], &parts), len, pieces) }
    })
}

/// `ireducescatter`, since v8.
pub(crate) unsafe extern "C" fn ireducescatter<S: Sge>(
    comm: *mut c_void,
    nparts: c_int,
    parts: *mut S,
    own: *mut c_void,
    block: usize,
    offset: usize,
    len: usize,
    data_type: c_int,
    redop: c_int,
    own_mr: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    call(|| {
        // SAFETY: The caller upholds NCCL's contract of a collective.
        let start = unsafe { Start::new("ireducescatter", comm, request) }?;
        let (rank, nranks) = start.comm.rank();
        let (data_type, redop) = reduction(start.function, data_type, redop)?;
        let window = Window { block, offset, len };
        window.check(start.function, nranks, data_type.bytes())?;
        // SAFETY: NCCL promises the parts.
        let parts = unsafe { start.parts(nparts, parts, len) }?;
        let piece = window.piece(rank);
        let own = start.locate("this rank's bytes", own_mr, own, piece.len())?;
        start.check_piece(&own, piece.start, &parts)?;
        let elements = Elements { data_type, redop: Some(redop) };
        let pieces = |all, own| window.scatter((rank, nranks), elements, all, own);
        // SAFETY: NCCL keeps the memory until the request is done, and this function has checked the
        // rest.
        unsafe { start.with((&parts, &[own]), piece.len(), pieces) }
    })
}

/// `iflush`. The request is null. A processor has written the output to host memory, or the driver has copied
/// it to GPU memory, so nothing is on its way.
pub(crate) unsafe extern "C" fn iflush(
    comm: *mut c_void,
    _data: *mut c_void,
    _size: c_int,
    _mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> Code {
    // SAFETY: The caller upholds NCCL's contract of `iflush`.
    call(|| unsafe { Start::new("iflush", comm, request) }.map(drop))
}

pub(crate) unsafe extern "C" fn test(
    request: *mut c_void,
    done: *mut c_int,
    size: *mut c_int,
) -> Code {
    call(|| {
        if done.is_null() {
            return Err(null("test: done"));
        }
        // SAFETY: NCCL promises room for the flag.
        unsafe { done.write(0) };
        let Some(bytes) = comm::test(request)? else { return Ok(()) };
        // SAFETY: NCCL promises room for the flag, and for a size unless it is null.
        unsafe {
            done.write(1);
            if !size.is_null() {
                // The interface has no room for more, and NCCL only logs the size.
                size.write(c_int::try_from(bytes).unwrap_or(c_int::MAX));
            }
        }
        Ok(())
    })
}

/// A call that is to start a collective.
struct Start {
    function: &'static str,
    number: Number,
    comm: std::sync::Arc<CollComm>,
    request: *mut *mut c_void,
}

impl Start {
    /// Finds the comm, and writes a null request.
    ///
    /// # Safety
    /// `request` is null or has room for a request.
    unsafe fn new(
        function: &'static str,
        comm: *mut c_void,
        request: *mut *mut c_void,
    ) -> Result<Self, Failed> {
        if request.is_null() {
            return Err(null(&format!("{function}: request")));
        }
        // SAFETY: The caller promises room for a request.
        unsafe { request.write(ptr::null_mut()) };
        let (number, comm) = CollComm::find(function, comm)?;
        Ok(Start { function, number, comm, request })
    }

    /// Finds registered memory.
    fn locate(
        &self,
        what: &str,
        mhandle: *mut c_void,
        at: *mut c_void,
        len: usize,
    ) -> Result<MemoryRange, Failed> {
        memory::locate((self.function, what), self.number, mhandle, at, len)
    }

    /// Checks that this rank's piece of a window is in place, at `offset` of the window, or apart from the
    /// window. A window of several parts is never in place.
    fn check_piece(&self, own: &MemoryRange, offset: usize, parts: &[MemoryRange]) -> Outcome {
        match parts {
            [window] if own.at != window.at.wrapping_add(offset) => self.check_apart(own, window),
            _ => Ok(()),
        }
    }

    /// Checks that two ranges share no byte.
    fn check_apart(&self, a: &MemoryRange, b: &MemoryRange) -> Outcome {
        if !a.overlaps(b) {
            return Ok(());
        }
        Err(misused(format_args!(
            "{}: {} bytes at {:p} and {} bytes at {:p} overlap, and it is not in place",
            self.function, a.len, a.at, b.len, b.at
        )))
    }

    /// Returns the parts of a window of `len` bytes that are not empty, and checks that they are
    /// registered.
    ///
    /// # Safety
    /// `parts` is null or has `nparts` entries.
    unsafe fn parts<S: Sge>(
        &self,
        nparts: c_int,
        parts: *mut S,
        len: usize,
    ) -> Result<Vec<MemoryRange>, Failed> {
        let function = self.function;
        let count = usize::try_from(nparts)
            .map_err(|_| misused(format_args!("{function}: {nparts} parts of a window")))?;
        if parts.is_null() && count > 0 {
            return Err(null(&format!("{function}: parts")));
        }
        let parts = match count {
            0 => &[],
            // SAFETY: The caller promises the entries.
            _ => unsafe { slice::from_raw_parts(parts, count) },
        };
        let (mut all, mut found) = (0_usize, Vec::new());
        for part in parts {
            let (mhandle, at, size) = part.parts();
            let part = self.locate("a part of the window", mhandle, at, size)?;
            all = all.saturating_add(size);
            if size > 0 {
                found.push(part);
            }
        }
        match all == len {
            true => Ok(found),
            false => Err(misused(format_args!(
                "{function}: the parts of a window of {len} bytes have {all} bytes"
            ))),
        }
    }

    /// Starts a collective and writes its request, or leaves it null if the comm can't take it yet.
    ///
    /// # Safety
    /// The caller makes the promises of [`CollComm::start`].
    unsafe fn with(
        self,
        memory: (&[MemoryRange], &[MemoryRange]),
        bytes: usize,
        build: impl FnOnce(*const u8, *mut u8) -> Vec<RawOperation>,
    ) -> Outcome {
        let Start { number, comm, request, .. } = self;
        // SAFETY: The caller has promised what `start` demands.
        if let Some(started) = unsafe { comm.start(number, memory, bytes, build) }? {
            // SAFETY: `new` has written to the same place.
            unsafe { request.write(started.to_ptr()) };
        }
        Ok(())
    }
}

/// Returns the bytes of some elements.
fn bytes_of(function: &str, count: usize, data_type: DataType) -> Result<usize, Failed> {
    count.checked_mul(data_type.bytes()).filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or_else(
        || misused(format_args!("{function} of {count} elements of type {data_type}: too many")),
    )
}
