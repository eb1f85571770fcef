//! The driver's functions as cuda.h declares them, with integers for enums and handles.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::io::Write;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::MetadataExt;
use std::{fs, ptr};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::memory::GRANULE;
use crate::nic::DmaBuf;
use crate::stream::Operation;
use crate::{
    CAPTURE_MODE, CURRENT, Code, Driver, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE,
    NOT_INITIALIZED, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, RELAXED, SETTINGS, driver,
};

macro_rules! functions {
    ($(fn $name:ident($driver:ident $(, $arg:ident: $kind:ty)*) $body:block)+) => { $(
        /// Stands in for the driver's function of this name.
        ///
        /// # Safety
        /// The caller keeps the rules that cuda.h gives for this function.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) unsafe extern "C" fn $name($($arg: $kind),*) -> Code {
            let run = |$driver: &mut Driver| -> Result<(), Code> { $body };
            match driver(stringify!($name)).and_then(|mut driver| run(&mut driver)) {
                Ok(()) => 0,
                Err(code) => code,
            }
        }
    )+ };
}

/// Writes a result to the address that the caller gave.
fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the driver's caller gives an address that is valid for writing a `T`.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

fn put_text(to: *mut c_char, len: c_int, text: &str) -> Result<(), Code> {
    let len = usize::try_from(len).ok().filter(|len| *len > text.len()).ok_or(INVALID_VALUE)?;
    // SAFETY: the driver's caller gives room for `len` bytes.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), len) };
    to[..text.len()].copy_from_slice(text.as_bytes());
    to[text.len()] = 0;
    Ok(())
}

fn gpu(number: c_int) -> Result<usize, Code> {
    let number = usize::try_from(number).map_err(|_| INVALID_DEVICE)?;
    if number < SETTINGS.gpus.len() { Ok(number) } else { Err(INVALID_DEVICE) }
}

functions! {
    fn cuInit(driver, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        driver.initialized = true;
        Ok(())
    }

    fn cuDriverGetVersion(_driver, version: *mut c_int) { put(version, 12_080) }

    fn cuDeviceGetCount(_driver, count: *mut c_int) { put(count, SETTINGS.gpus.len() as c_int) }

    fn cuDeviceGet(_driver, device: *mut c_int, ordinal: c_int) {
        put(device, gpu(ordinal)? as c_int)
    }

    fn cuDeviceGetName(_driver, name: *mut c_char, len: c_int, device: c_int) {
        put_text(name, len, &format!("Fake GPU {}", gpu(device)?))
    }

    fn cuDeviceGetPCIBusId(_driver, id: *mut c_char, len: c_int, device: c_int) {
        put_text(id, len, &SETTINGS.gpus[gpu(device)?])
    }

    fn cuDeviceGetAttribute(_driver, value: *mut c_int, attribute: c_int, device: c_int) {
        gpu(device)?;
        put(value, SETTINGS.attribute(attribute).ok_or(INVALID_VALUE)?)
    }

    fn cuDevicePrimaryCtxRetain(driver, context: *mut usize, device: c_int) {
        let gpu = gpu(device)?;
        driver.retained[gpu] += 1;
        put(context, gpu + 1)
    }

    fn cuDevicePrimaryCtxRelease_v2(driver, device: c_int) {
        let retained = &mut driver.retained[gpu(device)?];
        *retained = retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    }

    fn cuCtxPushCurrent_v2(driver, context: usize) {
        let gpu = driver.gpu_of(context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(gpu));
        Ok(())
    }

    fn cuCtxSetCurrent(driver, context: usize) {
        let gpu = driver.gpu_of(context)?;
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
            stack.push(gpu);
        });
        Ok(())
    }

    fn cuCtxPopCurrent_v2(_driver, context: *mut usize) {
        let gpu = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        put(context, gpu + 1)
    }

    fn cuCtxGetFlags(driver, flags: *mut c_uint) {
        let gpu = driver.context()?;
        put(flags, driver.flags[gpu])
    }

    fn cuCtxSetFlags(driver, flags: c_uint) {
        let gpu = driver.context()?;
        driver.flags[gpu] = flags;
        SETTINGS.note(&format!("context flags {flags}"));
        Ok(())
    }

    fn cuMemAlloc_v2(driver, addr: *mut u64, len: usize) {
        let gpu = driver.context()?;
        put(addr, driver.memory.alloc(gpu, len)?)
    }

    fn cuMemFree_v2(driver, addr: u64) {
        driver.context()?;
        driver.memory.free(addr, false)
    }

    fn cuMemHostAlloc(driver, addr: *mut *mut u8, len: usize, _flags: c_uint) {
        let gpu = driver.context()?;
        put(addr, driver.memory.alloc_host(gpu, len)?)?;
        SETTINGS.note(&format!("pinned {}", driver.memory.pinned()));
        Ok(())
    }

    fn cuMemFreeHost(driver, addr: *mut c_void) {
        driver.context()?;
        driver.memory.free(addr.addr() as u64, true)?;
        SETTINGS.note(&format!("pinned {}", driver.memory.pinned()));
        Ok(())
    }

    fn cuMemcpyHtoD_v2(driver, to: u64, from: *const u8, len: usize) {
        driver.context()?;
        let to = driver.memory.content(to, len)?;
        // SAFETY: the driver's caller gives a valid range of `len` bytes, and `content` has checked the
        // GPU's range.
        unsafe { ptr::copy(from, to, len) };
        Ok(())
    }

    fn cuMemcpyDtoH_v2(driver, to: *mut u8, from: u64, len: usize) {
        driver.context()?;
        let from = driver.memory.content(from, len)?;
        // SAFETY: the driver's caller gives a valid range of `len` bytes, and `content` has checked the
        // GPU's range.
        unsafe { ptr::copy(from, to, len) };
        Ok(())
    }

    fn cuMemcpyAsync(driver, to: u64, from: u64, len: usize, stream: usize) {
        driver.context()?;
        // An address that is not the GPU's is the host's.
        let mut place = |addr: u64| -> Result<usize, Code> {
            if driver.memory.find(addr).is_ok_and(|(_, allocation)| !allocation.is_host) {
                return Ok(driver.memory.content(addr, len)?.addr());
            }
            Ok(addr as usize)
        };
        let (to, from) = (place(to)?, place(from)?);
        driver.streams.push(stream, Operation::Copy { to, from, len })
    }

    fn cuMemcpyHtoDAsync_v2(driver, to: u64, from: *const u8, len: usize, stream: usize) {
        driver.context()?;
        let to = driver.memory.content(to, len)?.addr();
        driver.streams.push(stream, Operation::Copy { to, from: from.addr(), len })
    }

    fn cuMemcpyDtoHAsync_v2(driver, to: *mut u8, from: u64, len: usize, stream: usize) {
        driver.context()?;
        let from = driver.memory.content(from, len)?.addr();
        driver.streams.push(stream, Operation::Copy { to: to.addr(), from, len })
    }

    fn cuMemGetHandleForAddressRange(
        driver, handle: *mut c_int, addr: u64, len: usize, kind: c_uint, flags: c_ulonglong
    ) {
        let page = rustix::param::page_size();
        let (base, allocation) = driver.memory.find(addr)?;
        let end = (base + allocation.len as u64).next_multiple_of(page as u64);
        let aligned = addr.is_multiple_of(page as u64) && len.is_multiple_of(page);
        let is_managed = SETTINGS.is_managed;
        if kind != 1 || flags != 0 || !aligned || addr + len as u64 > end || is_managed {
            return Err(INVALID_VALUE);
        }
        let content = driver.memory.pages(addr, len)?;
        // SAFETY: `pages` has checked that `len` bytes are at `content`.
        let bytes = unsafe { std::slice::from_raw_parts(content, len) };
        let file = memfd_create("fake-dma-buf", MemfdFlags::CLOEXEC).map_err(|_| OUT_OF_MEMORY)?;
        let mut file = fs::File::from(file);
        file.write_all(bytes).map_err(|_| OUT_OF_MEMORY)?;
        let inode = file.metadata().map_err(|_| OUT_OF_MEMORY)?.ino();
        driver.dma_bufs.insert(inode, DmaBuf { start: content.expose_provenance(), len });
        put(handle, file.into_raw_fd())
    }

    fn cuPointerGetAttribute(driver, value: *mut c_void, attribute: c_uint, addr: u64) {
        let (base, allocation) = driver.memory.find(addr)?;
        match attribute {
            2 => put(value.cast::<u32>(), if allocation.is_host { 1 } else { 2 }),
            6 => put(value.cast::<u32>(), allocation.sync_memops.into()),
            7 => {
                // Each mapping has a number of its own.
                let index = SETTINGS.mapping.map_or(0, |len| (addr - base) / len);
                put(value.cast::<u64>(), allocation.buffer_id + (index << 32))
            }
            8 => put(value.cast::<u32>(), (SETTINGS.is_managed && !allocation.is_host).into()),
            9 => put(value.cast::<c_int>(), allocation.gpu as c_int),
            11 => put(value.cast::<u64>(), base),
            12 => put(value.cast::<usize>(), allocation.len),
            15 | 18 | 19 if SETTINGS.has_old_pointers => Err(INVALID_VALUE),
            15 => put(value.cast::<u32>(), SETTINGS.is_gpudirect.into()),
            // Ordinary memory is mapped in whole granules.
            18 => {
                let whole = (allocation.len as u64).next_multiple_of(GRANULE);
                put(value.cast::<usize>(), SETTINGS.mapping.unwrap_or(whole) as usize)
            }
            19 => {
                let before = SETTINGS.mapping.map_or(0, |len| (addr - base) / len * len);
                put(value.cast::<u64>(), base + before)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuPointerSetAttribute(driver, value: *const c_uint, attribute: c_uint, addr: u64) {
        let (_, allocation) = driver.memory.find(addr)?;
        let is_of_host = allocation.is_host || SETTINGS.is_managed;
        if attribute != 6 || is_of_host || value.is_null() {
            return Err(INVALID_VALUE);
        }
        if SETTINGS.mapping.is_some() {
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the driver's caller gives a pointer to an integer for this attribute.
        allocation.sync_memops = unsafe { *value } != 0;
        Ok(())
    }

    fn cuStreamCreate(driver, stream: *mut usize, _flags: c_uint) {
        driver.context()?;
        put(stream, driver.streams.create_stream())
    }

    fn cuStreamSynchronize(driver, stream: usize) { driver.streams.finish(stream) }

    fn cuStreamDestroy_v2(driver, stream: usize) { driver.streams.destroy_stream(stream) }

    fn cuEventCreate(driver, event: *mut usize, _flags: c_uint) {
        driver.context()?;
        put(event, driver.streams.create_event())
    }

    fn cuEventRecord(driver, event: usize, stream: usize) { driver.streams.record(event, stream) }

    fn cuEventQuery(driver, event: usize) {
        if driver.streams.query(event, SETTINGS.queries)? { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventDestroy_v2(driver, event: usize) { driver.streams.destroy_event(event) }

    fn cuFlushGPUDirectRDMAWrites(driver, target: c_uint, scope: c_uint) {
        driver.context()?;
        if target == 0 && [100, 200].contains(&scope) { Ok(()) } else { Err(INVALID_VALUE) }
    }

    fn cuThreadExchangeStreamCaptureMode(_driver, mode: *mut c_uint) {
        // SAFETY: the driver's caller gives a pointer to an integer, or null.
        let new = unsafe { mode.as_ref() }.copied().filter(|mode| *mode <= RELAXED);
        let new = new.ok_or(INVALID_VALUE)?;
        SETTINGS.note(&format!("capture mode {new}"));
        put(mode, CAPTURE_MODE.replace(new))
    }
}

/// Stands in for the driver's function of this name, which needs no `cuInit`.
///
/// # Safety
/// The caller keeps the rules that cuda.h gives for this function.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the driver's own name")]
pub(crate) unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let known = match code {
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        100 => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        _ => return INVALID_VALUE,
    };
    put(name, known.as_ptr()).err().unwrap_or(0)
}
